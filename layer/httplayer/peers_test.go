package httplayer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// serve runs a server for h, HTTP/1.1 and cleartext HTTP/2, until the test ends: a
// Server for a Handler, else that of net/http.
func serve(t testing.TB, h http.Handler, opts ...func(*http.Server)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if _, ok := h.(*handler); ok && len(opts) == 0 {
		return servingOn(t, l, h, 0).addr
	}
	serveOn(t, l, h, opts...)
	return l.Addr().String()
}

func serveOn(t testing.TB, l net.Listener, h http.Handler, opts ...func(*http.Server)) *http.Server {
	t.Helper()
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	srv.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	for _, opt := range opts {
		opt(srv)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("server: %v", err)
		}
	})
	return srv
}

// endpoint makes an Endpoint that lives until the test ends.
func endpoint(t testing.TB, addr string, opts ...EndpointOption) *Endpoint {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	// These limits suit a loaded machine. A test of a limit sets its own.
	e := NewEndpoint(ctx, addr, append([]EndpointOption{WithConnectTimeout(patience), WithIdleTimeout(patience)}, opts...)...)
	return e
}

// client makes an http.Client for one protocol, with connections of its own.
func client(t testing.TB, h2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	if h2 {
		tr.Protocols.SetUnencryptedHTTP2(true)
	} else {
		tr.Protocols.SetHTTP1(true)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	require.NoError(t, err)
	req.GetBody = nil // it cannot be compared
	return req
}

// read reads a response to its end and closes it.
func read(t testing.TB, rsp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	return string(b)
}

// serviceFunc makes a Service of a function.
func serviceFunc(f func(context.Context, *http.Request) (*http.Response, error)) Service {
	return layer.Func[*http.Request, *http.Response](f)
}

// These functions ignore errors of Write, because the other side detects missing bytes.

func say(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

func sayf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func pipe(w io.Writer, r io.Reader) { _, _ = io.Copy(w, r) }

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func fullDuplex(w http.ResponseWriter) { _ = http.NewResponseController(w).EnableFullDuplex() }

// rawH2 is the server's end of an HTTP/2 connection, frame by frame.
type rawH2 struct {
	net.Conn
	in *bufio.Reader
}

const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRST          = 0x3
	frameSettings     = 0x4
	frameGoAway       = 0x7
	framePing         = 0x6
	frameWindowUpdate = 0x8
	flagEndStream     = 0x1
	flagAck           = 0x1
	flagEndHeader     = 0x4
	maxStream         = 1<<31 - 1
)

var headerOK = []byte{0x88} // :status 200, from the static table of HPACK

func newRawH2(conn net.Conn) *rawH2 { return &rawH2{conn, bufio.NewReader(conn)} }

// preface reads what a client begins with, without answering.
func (c *rawH2) preface() error {
	_, err := io.ReadFull(c.in, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
	return err
}

func (c *rawH2) settings(maxStreams int) {
	payload := binary.BigEndian.AppendUint32([]byte{0, 0x3}, uint32(maxStreams))
	c.frame(frameSettings, 0, 0, payload)
}

func (c *rawH2) goAway(last uint32) {
	c.frame(frameGoAway, 0, 0, append(binary.BigEndian.AppendUint32(nil, last), 0, 0, 0, 0))
}

func (c *rawH2) reset(stream, code uint32) {
	c.frame(frameRST, 0, stream, binary.BigEndian.AppendUint32(nil, code))
}

func (c *rawH2) respond(stream uint32, body string) {
	c.frame(frameHeaders, flagEndHeader, stream, headerOK)
	c.frame(frameData, flagEndStream, stream, []byte(body))
}

func (c *rawH2) frame(kind, flags byte, stream uint32, payload []byte) {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	head = append(head, kind, flags)
	head = binary.BigEndian.AppendUint32(head, stream)
	c.Write(append(head, payload...))
}

// next reads the next frame.
func (c *rawH2) next() (kind, flags byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err = io.ReadFull(c.in, head[:]); err != nil {
		return 0, 0, 0, nil, err
	}
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err = io.ReadFull(c.in, payload)
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]), payload, err
}

// request reads to the next HEADERS, and returns their stream; 0 if the
// connection ends.
func (c *rawH2) request() (stream uint32) {
	for {
		kind, _, stream, _, err := c.next()
		if err != nil {
			return 0
		}
		if kind == frameHeaders {
			return stream
		}
	}
}

// drain reads until the connection ends.
func (c *rawH2) drain() {
	for {
		if _, _, _, _, err := c.next(); err != nil {
			return
		}
	}
}

// serveRaw gives every connection to handle, one after the other, and closes
// it after that. It returns when l is closed.
func serveRaw(t testing.TB, l net.Listener, handle func(n int, conn net.Conn)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handle(n, conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

// rawHost is a server at an address of a bubble's network. It serves each connection
// by itself, once the client's preface has come, and closes it after that.
func rawHost(t *testing.T, h *host, addr string, handle func(n int, c *rawH2)) {
	t.Helper()
	l, err := h.network.Listen("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if c := newRawH2(conn); c.preface() == nil {
					handle(n, c)
				}
			}()
		}
	}()
}

// rawServer is serveRaw on loopback.
func rawServer(t testing.TB, handle func(n int, conn net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveRaw(t, l, handle)
	return l.Addr().String()
}
