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

// tunnel sends CONNECT by a connection of its own, which is the body of a 2xx
// and ends with it. It does without net/http, which would take a length in such
// a response for that of a body, and has no body that can be written to.
func (p *pool) tunnel(ctx context.Context, req *http.Request) (*http.Response, error) {
	c, err := p.dialTunnel(ctx)
	if err != nil {
		return nil, err
	}
	closeBody(req) // none is sent
	end := &tunnelEnd{pool: p, conn: c, stop: context.AfterFunc(ctx, func() { _ = p.cut(c) })}
	rsp, err := askForTunnel(c.wire, p.endpoint.connectRequest(req), end)
	if err != nil {
		_ = end.Close()
		return nil, p.endpoint.failed(outgoing{}.blame(ctx, err))
	}
	rsp.Request, rsp.TLS = req, c.wire.tls
	return rsp, nil
}

// connectRequest is req as it is sent.
func (e *Endpoint) connectRequest(req *http.Request) *http.Request {
	out := fork(req)
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // or net/http would say its own
	}
	if out.URL == nil || out.URL.Host == "" {
		out.URL = e.completed(urlOf(req))
	}
	return out
}

// dialTunnel makes a connection that is never idle. The attempt goes on when
// ctx ends, since others may wait for word of the address.
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

// makeTunnel makes the connection that a slot was taken for.
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

// dialWire makes a connection for HTTP/1.1 that net/http knows nothing of.
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

// tunnelEnd is what is to be done once when a tunnel, or the answer that there
// is none, was closed.
type tunnelEnd struct {
	pool *pool
	conn *h1Conn
	stop func() bool
}

func (e *tunnelEnd) Close() error {
	e.stop()
	return e.pool.cut(e.conn)
}

// cut ends a tunnel.
func (p *pool) cut(c *h1Conn) error {
	err := c.wire.Close()
	p.release(c)
	return err
}

// writeHead writes the head of the response that a tunnel begins with: without
// a length, since it has no body.
func writeHead(w *bufio.Writer, rsp *http.Response) error {
	text := http.StatusText(rsp.StatusCode)
	if _, said, ok := strings.Cut(rsp.Status, " "); ok {
		text = printable(said)
	}
	_, _ = io.WriteString(w, "HTTP/1.1 "+statusDigits(rsp.StatusCode)+" "+text+"\r\n")
	_ = rsp.Header.WriteSubset(w, map[string]bool{"Content-Length": true, "Transfer-Encoding": true})
	_, _ = io.WriteString(w, "\r\n")
	return w.Flush() // which says what went wrong before
}

func statusDigits(code int) string {
	return string([]byte{'0' + byte(code/100%10), '0' + byte(code/10%10), '0' + byte(code%10)})
}

// removeHopByHop drops what is said to the next hop only, but for what a proxy
// asks of its clients.
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

// upgrade is what h says that its connection is upgraded to, or is to be.
func upgrade(h http.Header) string {
	if len(h["Upgrade"]) == 0 || !namedInConnection(h, "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// upgradeError returns why r cannot ask for its upgrade. ReverseProxy would take
// that for a failure of its own.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade is no printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}

// switchError returns why a 101 is no answer to req, which did not ask for it, or
// for something else.
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
