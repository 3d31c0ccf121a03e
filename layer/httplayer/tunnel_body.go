package httplayer

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
)

// askForTunnel sends CONNECT and reads the answer. end is closed with the body
// of that.
func askForTunnel(w *wire, req *http.Request, end io.Closer) (*http.Response, error) {
	if err := req.Write(w); err != nil {
		return nil, err
	}
	head := &io.LimitedReader{R: w, N: tunnelHead}
	in := bufio.NewReader(head)
	rsp, err := http.ReadResponse(in, req)
	for err == nil && rsp.StatusCode < http.StatusOK && rsp.StatusCode != http.StatusSwitchingProtocols {
		rsp, err = http.ReadResponse(in, req)
	}
	switch {
	case err != nil && head.N <= 0:
		return nil, errTunnelHead
	case err != nil:
		return nil, err
	case rsp.StatusCode/100 == 2:
		head.N = math.MaxInt64
		rsp.Header.Del("Content-Length")
		rsp.Header.Del("Transfer-Encoding")
		rsp.ContentLength, rsp.TransferEncoding, rsp.Trailer = -1, nil, nil
		rsp.Body = &tunnelBody{Reader: in, wire: w, Closer: end}
	default:
		head.N = math.MaxInt64
		rsp.Body = &refusedTunnel{rsp.Body, end}
	}
	return rsp, nil
}

// tunnelHead is how long the head of an answer to CONNECT may be.
const tunnelHead = 1 << 20

var errTunnelHead = errors.New("the head of the answer to CONNECT is too long")

// tunnelBody is a tunnel as the body of a response.
type tunnelBody struct {
	io.Reader
	io.Closer
	wire *wire
}

func (b *tunnelBody) Write(p []byte) (int, error) { return b.wire.Write(p) }

// CloseWrite ends what goes to the endpoint.
func (b *tunnelBody) CloseWrite() error { return b.wire.CloseWrite() }

// refusedTunnel is the body of a response to CONNECT that is no 2xx. Its
// connection is not used again.
type refusedTunnel struct {
	io.ReadCloser
	end io.Closer
}

func (b *refusedTunnel) Close() error { return errors.Join(b.ReadCloser.Close(), b.end.Close()) }

func newTunnelWire(conn net.Conn) *wire {
	w := &wire{Conn: conn}
	if secure, ok := conn.(*tls.Conn); ok {
		state := secure.ConnectionState()
		w.tls = &state
	}
	return w
}

// urlOf is the URL of req; that of one that has none is empty.
func urlOf(req *http.Request) *url.URL {
	if req.URL == nil {
		return new(url.URL)
	}
	return req.URL
}
