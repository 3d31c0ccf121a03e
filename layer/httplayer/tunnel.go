package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/gotower/gotower/internal/panics"
)

// connect serves CONNECT. The client may have sent bytes for the tunnel already,
// so where it gets none its connection ends.
func (h *handler) connect(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	if !h.tunnels {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	out := r.Clone(r.Context())
	out.Body = http.NoBody // the server's, which would wait for the rest of it
	removeHopByHop(out.Header)
	rsp, err := h.roundTrip(out)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	defer rsp.Body.Close()
	removeHopByHop(rsp.Header)
	if rsp.StatusCode/100 != 2 {
		answerConnect(w, rsp)
		return
	}
	both, ok := rsp.Body.(io.ReadWriteCloser)
	if !ok || r.ProtoMajor != 1 { // no connection of HTTP/2 becomes one, nor ends for one
		h.fail(w, r, &StatusError{
			Code: http.StatusBadGateway, Reason: "CONNECT got an answer that is no tunnel", Close: r.ProtoMajor == 1,
		})
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.fail(w, r, err)
		return
	}
	defer conn.Close()
	if writeHead(buffered.Writer, rsp) == nil {
		splice(r.Context(), ahead(conn, buffered.Reader), both)
	}
}

// answerConnect passes on the refusal of a tunnel.
func answerConnect(w http.ResponseWriter, rsp *http.Response) {
	delete(rsp.Header, closesClient) // said already
	header := w.Header()
	maps.Copy(header, rsp.Header)
	if _, ok := header["Content-Type"]; !ok {
		header["Content-Type"] = nil // or the server would guess one
	}
	w.WriteHeader(rsp.StatusCode)
	if _, err := io.Copy(w, rsp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// splice copies both ways until both have ended, each by itself, or one has
// failed, or ctx ends. It closes both.
func splice(ctx context.Context, client net.Conn, endpoint io.ReadWriteCloser) {
	cut := func() {
		_ = client.Close()
		_ = endpoint.Close()
	}
	defer cut()
	defer context.AfterFunc(ctx, func() { _ = panics.Contain(cut) })()
	ends := make(chan bool, 2)
	go func() { ends <- carry(endpoint, client) }()
	go func() { ends <- carry(client, endpoint) }()
	if !<-ends {
		cut() // the other one reads from what is of no use any more
	}
	<-ends
}

// carry copies from one to the other, ends what it wrote to, and reports
// whether all of that went well, without a panic.
func carry(to io.Writer, from io.Reader) (whole bool) {
	_ = panics.Contain(func() {
		if _, err := io.Copy(to, from); err != nil {
			return
		}
		half, ok := to.(halfCloser)
		whole = ok && half.CloseWrite() == nil
	})
	return whole
}

// ahead is conn with what was read of it ahead, if anything was.
func ahead(conn net.Conn, r *bufio.Reader) net.Conn {
	n := r.Buffered()
	if n == 0 {
		return conn
	}
	first := make([]byte, n)
	_, _ = io.ReadFull(r, first)
	return &aheadConn{Conn: conn, first: first}
}

// aheadConn is read by one goroutine, as a tunnel's end is.
type aheadConn struct {
	net.Conn
	first []byte
}

func (c *aheadConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// CloseWrite ends what is sent, where the connection can.
func (c *aheadConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// NetConn returns the connection itself.
func (c *aheadConn) NetConn() net.Conn { return c.Conn }

// Hijack hands over a connection that is being upgraded, with the bytes that
// its client sent behind the request: ReverseProxy looks at the connection
// only.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	x.begin()
	conn, buffered, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if !errors.Is(err, http.ErrNotSupported) {
		x.upgraded = nil
	}
	if err != nil {
		return nil, nil, err
	}
	return ahead(conn, buffered.Reader), buffered, nil
}
