package httplayer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// The server selects the version by ALPN, and one handshake is sufficient for both versions.
func TestEndpointALPN(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			var handshakes atomic.Int64
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
			s.EnableHTTP2 = h2
			s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				handshakes.Add(1)
				return nil, nil
			}}
			s.StartTLS()
			defer s.Close()
			trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
			e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), httplayer.WithTLS(trusting), httplayer.WithConnectTimeout(time.Minute))
			for range 3 {
				requireProto(t, e, s.URL, name)
			}
			require.EqualValues(t, 1, handshakes.Load())
			e.CloseIdleConnections()
			requireProto(t, e, s.URL, name)
			require.EqualValues(t, 2, handshakes.Load())
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { requireProto(t, e, s.URL, name) })
			}
			all.Wait()
			e.CloseIdleConnections()
		})
	}
}

// While the certificate of an HTTP/1.1 server is not trusted, the endpoint is not ready. Its probes offer both
// versions, because a probe for HTTP/2 only would fail for another reason.
func TestEndpointALPNProbes(t *testing.T) {
	var distrusts atomic.Bool
	distrusts.Store(true)
	errDistrust := errors.New("not trusted")
	hellos := make(chan []string, 1000)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		hellos <- hello.SupportedProtos
		return nil, nil
	}}
	s.StartTLS()
	defer s.Close()
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.VerifyConnection = func(tls.ConnectionState) error {
		if distrusts.Load() {
			return errDistrust
		}
		return nil
	}
	e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), httplayer.WithTLS(config),
		httplayer.WithConnectTimeout(time.Minute), httplayer.WithBackoff(layer.Backoff{Min: time.Millisecond, Max: time.Millisecond}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	require.NoError(t, err)
	_, err = e.Call(t.Context(), req)
	require.ErrorIs(t, err, errDistrust)
	ready := make(chan error)
	go func() { ready <- e.Ready(t.Context()) }()
	for range 10 {
		require.Equal(t, []string{"h2", "http/1.1"}, <-hellos)
	}
	select {
	case err := <-ready:
		require.FailNow(t, "ready without a connection", err)
	default:
	}
	distrusts.Store(false)
	require.NoError(t, <-ready)
	requireProto(t, e, s.URL, "HTTP/1.1")
	e.CloseIdleConnections()
}

func requireProto(t *testing.T, e *httplayer.Endpoint, url, want string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	rsp, err := e.Call(t.Context(), req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, want, string(text))
}

// Connect makes the connection that the next request uses.
func TestEndpointConnect(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, secure := range []bool{false, true} {
			if h2 && !secure {
				continue
			}
			var conns atomic.Int64
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
			s.EnableHTTP2 = h2
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			opts := []httplayer.EndpointOption{httplayer.WithConnectTimeout(time.Minute)}
			if secure {
				s.StartTLS()
				opts = append(opts, httplayer.WithTLS(s.Client().Transport.(*http.Transport).TLSClientConfig))
			} else {
				s.Start()
			}
			defer s.Close()
			e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), opts...)
			for range 2 {
				require.NoError(t, e.Connect(t.Context()))
			}
			want := "HTTP/1.1"
			if h2 {
				want = "HTTP/2.0"
			}
			requireProto(t, e, s.URL, want)
			require.EqualValues(t, 1, conns.Load(), "HTTP/2 %v, TLS %v", h2, secure)
			e.CloseIdleConnections()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	e := httplayer.NewEndpoint(ctx, freeport.Addr(t))
	require.ErrorIs(t, e.Connect(t.Context()), layer.ErrNotReady)
	cancel()
	require.ErrorIs(t, e.Connect(t.Context()), layer.ErrClosed)
}

// recorder records the hooks of net/http/httptrace that were called.
type recorder struct {
	mu     sync.Mutex
	called []string
}

func (r *recorder) add(hook string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called = append(r.called, hook)
}

func (r *recorder) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { r.add("GetConn") },
		GotConn: func(i httptrace.GotConnInfo) {
			hook := "GotConn"
			if i.Conn.RemoteAddr() != nil && i.Reused {
				hook += " reused"
			}
			r.add(hook)
		},
		PutIdleConn:          func(error) { r.add("PutIdleConn") },
		GotFirstResponseByte: func() { r.add("GotFirstResponseByte") },
		Got100Continue:       func() { r.add("Got100Continue") },
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			r.add("Got1xxResponse " + http.StatusText(code))
			return nil
		},
		ConnectStart:      func(string, string) { r.add("ConnectStart") },
		ConnectDone:       func(string, string, error) { r.add("ConnectDone") },
		TLSHandshakeStart: func() { r.add("TLSHandshakeStart") },
		TLSHandshakeDone:  func(tls.ConnectionState, error) { r.add("TLSHandshakeDone") },
		WroteHeaders:      func() { r.add("WroteHeaders") },
		Wait100Continue:   func() { r.add("Wait100Continue") },
		WroteRequest:      func(httptrace.WroteRequestInfo) { r.add("WroteRequest") },
	}
}

// The hooks are called in the order of http.Transport.
func TestEndpointTrace(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") == "" {
			w.WriteHeader(http.StatusEarlyHints)
		}
		_, _ = io.Copy(w, r.Body)
	})
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(h)
			s.EnableHTTP2 = h2
			s.StartTLS()
			defer s.Close()
			theirs := s.Client().Transport.(*http.Transport)
			theirs.ExpectContinueTimeout = time.Minute
			defer theirs.CloseIdleConnections()
			e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), httplayer.WithTLS(theirs.TLSClientConfig), httplayer.WithConnectTimeout(time.Minute))
			for _, body := range []string{"", "first", "second"} {
				ours := hooksOf(t, httplayer.RoundTripper(e), s.URL, body, !h2)
				require.Equal(t, hooksOf(t, theirs, s.URL, body, !h2), ours, body)
				for _, hook := range []string{"GotConn", "WroteRequest", "GotFirstResponseByte", "Got1xxResponse"} {
					require.True(t, slices.ContainsFunc(ours, func(s string) bool { return strings.HasPrefix(s, hook) }), "%s of %v", hook, ours)
				}
			}
		})
	}
}

// hooksOf returns the hooks that are called for a request. The order of those of the request body and of
// those of the response is not defined if both are in progress, so the result is sorted. WroteRequest may
// even follow the end of the response.
func hooksOf(t *testing.T, rt http.RoundTripper, url, body string, expect bool) []string {
	t.Helper()
	r := new(recorder)
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), r.hooks()), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	if expect && body == "second" {
		req.Header.Set("Expect", "100-continue")
	}
	rsp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, body, string(text))
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Contains(r.called, "WroteRequest")
	}, time.Minute, time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	// net/http may call PutIdleConn after the body has ended, and it does not call it for HTTP/2.
	called := slices.DeleteFunc(r.called, func(s string) bool { return s == "PutIdleConn" })
	slices.Sort(called)
	return called
}

// A hook for DNS and TCP is called by the dialer, and a connection that was not reused is reported as such.
func TestEndpointTraceDial(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	e := httplayer.NewEndpoint(t.Context(), net.JoinHostPort("localhost", port), httplayer.WithConnectTimeout(time.Minute))
	r := new(recorder)
	hooks := r.hooks()
	hooks.DNSStart = func(httptrace.DNSStartInfo) { r.add("DNSStart") }
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), hooks), http.MethodGet, s.URL, http.NoBody)
	require.NoError(t, err)
	rsp, err := e.Call(req.Context(), req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, []string{"GetConn", "DNSStart"}, r.called[:2])
	require.Contains(t, r.called, "ConnectDone")
	require.Contains(t, r.called, "GotConn")
	require.Contains(t, r.called, "PutIdleConn")
}
