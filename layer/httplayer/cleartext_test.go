package httplayer

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// wiretap is a listener that keeps every byte that is sent to it, and answers
// each connection with one HTTP/1.1 response.
type wiretap struct {
	net.Listener
	mu   sync.Mutex
	seen bytes.Buffer
}

func newWiretap(t *testing.T) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wiretap{Listener: l}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { w.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return w
}

func (w *wiretap) serve(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		w.mu.Lock()
		w.seen.Write(buf[:n])
		whole := bytes.Contains(w.seen.Bytes(), []byte("\r\n\r\n"))
		w.mu.Unlock()
		if whole {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}
		if err != nil || whole {
			return
		}
	}
}

func (w *wiretap) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}

// A bearer token of a request with an https URL is never sent by an endpoint without TLS,
// for any sender of the request.
func TestEndpointRejectsHTTPSInCleartext(t *testing.T) {
	target := &url.URL{Scheme: "https", Host: "api.example", Path: "/"}
	for name, send := range map[string]func(svc Service, req *http.Request) error{
		"client": func(svc Service, req *http.Request) error {
			_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
			return err
		},
		"client with layers": func(svc Service, req *http.Request) error {
			svc = NewStack().Retry(RetryPolicy{}).Queue(1, 1e9).Service(svc)
			_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
			return err
		},
		"service": func(svc Service, req *http.Request) error {
			_, err := svc.Call(req.Context(), req)
			return err
		},
		"odd case": func(svc Service, req *http.Request) error {
			req.URL.Scheme = "HTTPS"
			_, err := svc.Call(req.Context(), req)
			return err
		},
		"reverse proxy": func(svc Service, req *http.Request) (err error) {
			proxy := httputil.ReverseProxy{
				Transport:    RoundTripper(svc),
				Rewrite:      func(p *httputil.ProxyRequest) { p.SetURL(target) },
				ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, e error) { err = e },
			}
			front := serve(t, &proxy)
			req.URL = &url.URL{Scheme: "http", Host: front, Path: "/"}
			rsp, failed := client(t, false).Do(req)
			require.NoError(t, failed)
			rsp.Body.Close()
			return err
		},
	} {
		for _, opts := range [][]EndpointOption{nil, {WithHTTP1()}, {WithHTTP2()}} {
			w := newWiretap(t)
			body := &closeCounter{Reader: strings.NewReader("secret body")}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target.String(), body)
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer token")
			err = send(endpoint(t, w.Addr().String(), opts...), req)
			require.ErrorContains(t, err, "httplayer.WithCleartextHTTPS", name)
			require.NotErrorIs(t, err, layer.ErrNotReady, "another endpoint must not be tried")
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusMisdirectedRequest, status)
			assert.Empty(t, w.text(), name)
			if name != "reverse proxy" { // which has a body of its own
				assert.NotZero(t, body.closes, name)
			}
		}
	}
}

type closeCounter struct {
	io.Reader
	closes int
}

func (c *closeCounter) Close() error {
	c.closes++
	return nil
}

func TestWithCleartextHTTPS(t *testing.T) {
	w := newWiretap(t)
	req := request(t, http.MethodGet, "https://api.example/", "")
	req.Header.Set("Authorization", "Bearer token")
	rsp, err := RoundTripper(endpoint(t, w.Addr().String(), WithCleartextHTTPS())).RoundTrip(req)
	require.NoError(t, err)
	read(t, rsp)
	require.Contains(t, w.text(), "Bearer token")
}

// A server that terminates TLS forwards in cleartext, as gateways do. Its requests have no
// scheme. A request with an absolute https target is rejected.
func TestHandlerForwardsTLSInCleartext(t *testing.T) {
	up := serve(t, http.HandlerFunc(shapes))
	var scheme string
	seen := serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		scheme = Accessor{}.Scheme(r)
		return endpoint(t, up).Call(ctx, r)
	})
	front := httptest.NewTLSServer(Handler(seen))
	defer front.Close()
	rsp, err := front.Client().Get(front.URL + "/what")
	require.NoError(t, err)
	assert.Contains(t, read(t, rsp), "/what")
	assert.Equal(t, "https", scheme)

	first, _, _ := wireTo(t, serve(t, Handler(endpoint(t, up)))).ask("GET https://web/what HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 421 Misdirected Request", first)
}

// A nil configuration is the default of crypto/tls: the connection is encrypted.
func TestWithTLSNilConfig(t *testing.T) {
	t.Parallel()
	w := newWiretap(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil && w.text() == "" {
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := endpoint(t, w.Addr().String(), WithTLS(nil)).Call(ctx, request(t, http.MethodGet, "http://web/secret", ""))
	require.Error(t, err)
	require.NotEmpty(t, w.text())
	require.NotContains(t, w.text(), "secret")
}
