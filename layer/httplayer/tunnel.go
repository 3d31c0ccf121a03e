package httplayer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gotower/gotower/internal/panics"
)

// connect serves CONNECT. Without a tunnel the connection is closed, because
// the client may already have sent bytes for the tunnel.
func (h *handler) connect(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	if !h.tunnels {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	out := r.Clone(r.Context())
	out.Body = http.NoBody // the server's body would wait for the rest
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
	if !ok || r.ProtoMajor != 1 { // HTTP/2 connections do not become tunnels and stay open
		h.fail(w, r, &StatusError{
			Code: http.StatusBadGateway, Reason: "CONNECT got a response without a tunnel", Close: r.ProtoMajor == 1,
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

// answerConnect sends the response of a CONNECT that was not accepted.
func answerConnect(w http.ResponseWriter, rsp *http.Response) {
	delete(rsp.Header, closesClient) // the connection is closed anyway
	header := w.Header()
	maps.Copy(header, rsp.Header)
	if _, ok := header["Content-Type"]; !ok {
		header["Content-Type"] = nil // prevents the server from guessing one
	}
	w.WriteHeader(rsp.StatusCode)
	if _, err := io.Copy(w, rsp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// splice copies in both directions until both have ended, one has failed, or
// ctx ends. It then closes both connections.
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
		cut() // ends the Read of the other direction
	}
	<-ends
}

// carry copies from into to, closes the sending half of to, and reports
// success. It recovers from panics.
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

// ahead returns conn with the bytes already buffered in r in front.
func ahead(conn net.Conn, r *bufio.Reader) net.Conn {
	n := r.Buffered()
	if n == 0 {
		return conn
	}
	first := make([]byte, n)
	_, _ = io.ReadFull(r, first)
	return &aheadConn{Conn: conn, first: first}
}

// aheadConn is read by one goroutine at a time.
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

// CloseWrite closes the sending half, if the connection supports it.
func (c *aheadConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// NetConn returns the underlying connection.
func (c *aheadConn) NetConn() net.Conn { return c.Conn }

// Hijack takes over an upgraded connection with the bytes that the client sent
// after its request. ReverseProxy reads from the connection only and would lose
// them.
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

// askForTunnel sends CONNECT and reads the response. Closing the body of the
// response closes end.
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

// tunnelHead is the maximum size of the response headers to CONNECT in bytes.
const tunnelHead = 1 << 20

var errTunnelHead = errors.New("the head of the answer to CONNECT is too long")

// tunnelBody is the response body that carries a tunnel.
type tunnelBody struct {
	io.Reader
	io.Closer
	wire *wire
}

func (b *tunnelBody) Write(p []byte) (int, error) { return b.wire.Write(p) }

// CloseWrite closes the direction to the endpoint.
func (b *tunnelBody) CloseWrite() error { return b.wire.CloseWrite() }

// refusedTunnel is the body of a CONNECT response that is not a 2xx. Its
// connection is not reused.
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

// urlOf returns the URL of req, or an empty one.
func urlOf(req *http.Request) *url.URL {
	if req.URL == nil {
		return new(url.URL)
	}
	return req.URL
}

// tunnel sends CONNECT on a separate connection, which becomes the body of a
// 2xx response and closes with it. It bypasses net/http, which would read a
// Content-Length in such a response and has no writable body.
func (p *pool) tunnel(ctx context.Context, req *http.Request) (*http.Response, error) {
	c, err := p.dialTunnel(ctx)
	if err != nil {
		return nil, err
	}
	closeBody(req) // CONNECT has no body
	end := &tunnelEnd{pool: p, conn: c, stop: context.AfterFunc(ctx, func() { _ = p.cut(c) })}
	rsp, err := askForTunnel(c.wire, p.endpoint.connectRequest(req), end)
	if err != nil {
		_ = end.Close()
		return nil, p.endpoint.failed(outgoing{}.blame(ctx, err))
	}
	rsp.Request, rsp.TLS = req, c.wire.tls
	return rsp, nil
}

// connectRequest returns req for the wire.
func (e *Endpoint) connectRequest(req *http.Request) *http.Request {
	out := fork(req)
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // prevents net/http from sending its own
	}
	if out.URL == nil || out.URL.Host == "" {
		out.URL = e.completed(urlOf(req))
	}
	return out
}

// dialTunnel makes a connection outside the idle pool. The attempt continues
// after ctx ends, because other requests may wait for its result.
func (p *pool) dialTunnel(ctx context.Context) (*h1Conn, error) {
	e := p.endpoint
	if err := p.slot(); err != nil {
		return nil, err
	}
	mine, err := e.link.admit()
	if err != nil {
		p.unslot()
		return nil, e.unreachable(err)
	}
	out := make(chan dialled)
	go func() {
		c, err := p.makeTunnel()
		p.report(mine, err)
		select {
		case out <- dialled{c, err}:
		case <-ctx.Done():
			if err == nil {
				_ = p.cut(c)
			}
		}
	}()
	select {
	case d := <-out:
		if d.err != nil {
			return nil, p.noConnection(d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// makeTunnel dials for a slot that was already acquired.
func (p *pool) makeTunnel() (*h1Conn, error) {
	w, err := p.endpoint.dialWire()
	if err != nil {
		p.unslot()
		return nil, err
	}
	c := &h1Conn{wire: w, state: h1Tunnel}
	p.mu.Lock()
	p.dialling--
	p.open[c] = struct{}{}
	p.mu.Unlock()
	return c, nil
}

// dialWire makes an HTTP/1.1 connection that net/http does not manage.
func (e *Endpoint) dialWire() (*wire, error) {
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, err := e.opts.dial(ctx, "tcp", e.addr)
	if err == nil && e.opts.tls != nil {
		conn, err = e.secure(ctx, conn, http1)
	}
	if err != nil {
		return nil, &peerError{err}
	}
	return newTunnelWire(conn), nil
}

// tunnelEnd runs the cleanup of a tunnel once.
type tunnelEnd struct {
	pool *pool
	conn *h1Conn
	stop func() bool
}

func (e *tunnelEnd) Close() error {
	e.stop()
	return e.pool.cut(e.conn)
}

// cut closes the connection of a tunnel.
func (p *pool) cut(c *h1Conn) error {
	err := c.wire.Close()
	p.release(c)
	return err
}

// writeHead writes the response headers that start a tunnel, without a length
// because a tunnel has no body.
func writeHead(w *bufio.Writer, rsp *http.Response) error {
	text := http.StatusText(rsp.StatusCode)
	if _, said, ok := strings.Cut(rsp.Status, " "); ok {
		text = printable(said)
	}
	_, _ = io.WriteString(w, "HTTP/1.1 "+statusDigits(rsp.StatusCode)+" "+text+"\r\n")
	_ = rsp.Header.WriteSubset(w, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = io.WriteString(w, "\r\n")
	return w.Flush() // returns an earlier write error, too
}

func statusDigits(code int) string {
	return string([]byte{'0' + byte(code/100%10), '0' + byte(code/10%10), '0' + byte(code%10)})
}

// removeHopByHop drops hop-by-hop headers.
func removeHopByHop(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		delete(h, name)
	}
}

// upgrade returns the protocol in the Upgrade header if h requests or confirms
// an upgrade.
func upgrade(h http.Header) string {
	if len(h["Upgrade"]) == 0 || !namedInConnection(h, "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// upgradeError returns why the upgrade that r requests is invalid. ReverseProxy
// would report it as a failure of the endpoint.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade header must be printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}

// switchError returns why a 101 response does not match the upgrade that req
// requested.
func switchError(req *http.Request, rsp *http.Response) error {
	asked, got := upgrade(req.Header), upgrade(rsp.Header)
	if got == "" || !strings.EqualFold(asked, got) {
		return &peerError{fmt.Errorf("httplayer: the endpoint switched to %q where %q was asked for", got, asked)}
	}
	if _, ok := rsp.Body.(io.ReadWriteCloser); !ok {
		return &peerError{errors.New("httplayer: the endpoint switched protocols and has no connection")}
	}
	return nil
}
