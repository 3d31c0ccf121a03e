package httplayer

import (
	"context"
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
