package httpclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: a server that answers PINGs itself

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// server answers with its name, or with a status from 400 on if that is not 0.
func server(t *testing.T, name string, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status != 0 {
			w.WriteHeader(status)
			return
		}
		io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// client returns an http.Client. Its idle connections are closed at the end of the test.
func client(t *testing.T, rt http.RoundTripper) *http.Client {
	t.Helper()
	c := &http.Client{Transport: rt, Timeout: time.Minute}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func body(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	rsp, err := c.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, rsp.StatusCode)
	return string(text)
}

// One of three endpoints answers 503 and one is not reachable. No request fails.
func TestClientAvoidsFailures(t *testing.T) {
	web := httpclient.New(t.Context(), "web.default",
		httpclient.WithAddrs(server(t, "ok", 0), server(t, "bad", http.StatusServiceUnavailable), freeport.Addr(t)))
	c := client(t, web)
	for range 200 {
		assert.Equal(t, "ok", body(t, c, "http://web.default/"))
	}
	assert.Len(t, web.Endpoints(), 3)
}

func TestClientHostNames(t *testing.T) {
	_, port, err := net.SplitHostPort(server(t, "ok", 0))
	require.NoError(t, err)
	for name, web := range map[string]*httpclient.Client{
		"target": httpclient.New(t.Context(), "localhost:"+port),
		"addrs":  httpclient.New(t.Context(), "web", httpclient.WithAddrs("localhost:"+port, "127.0.0.1:"+port)),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, "ok", body(t, client(t, web), "http://web.default/"))
		})
	}
}

func TestClientDefaultPort(t *testing.T) {
	for target, addr := range map[string]string{
		"127.0.0.1": "127.0.0.1:80", "::1": "[::1]:80", "[::1]": "[::1]:80", "127.0.0.1:81": "127.0.0.1:81",
	} {
		web := httpclient.New(t.Context(), target)
		require.NoError(t, web.WaitReady(t.Context()))
		assert.Equal(t, netip.MustParseAddrPort(addr), web.Endpoints()[0].ID.Addr, target)
	}
	secure := httpclient.New(t.Context(), "127.0.0.1", httpclient.WithTLS(nil))
	require.NoError(t, secure.WaitReady(t.Context()))
	assert.Equal(t, netip.MustParseAddrPort("127.0.0.1:443"), secure.Endpoints()[0].ID.Addr)
}

// The server's certificate is for example.com, and its address is an IP address.
func TestClientTLSServerName(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.ServerName) }))
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	trust := httpclient.WithTLS(&tls.Config{RootCAs: roots})
	addr := netip.MustParseAddrPort(s.Listener.Addr().String())
	named := resolve.Endpoint{ID: resolve.ID{Addr: addr, ServerName: "www.example.com"}}
	for name, tt := range map[string]struct {
		target string
		opts   []httpclient.Option
		want   string
	}{
		"target":   {"example.com:443", []httpclient.Option{trust, httpclient.WithAddrs(addr.String())}, "example.com"},
		"SRV":      {"_https._tcp.example.com", []httpclient.Option{trust, httpclient.WithAddrs(addr.String())}, "example.com"},
		"endpoint": {"web", []httpclient.Option{trust, httpclient.WithResolver(static.New(map[string][]resolve.Endpoint{"web": {named}}))}, "www.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, httpclient.New(t.Context(), tt.target, tt.opts...))
			assert.Equal(t, tt.want, body(t, c, "https://example.com/"))
		})
	}
	t.Run("cleartext", func(t *testing.T) {
		c := client(t, httpclient.New(t.Context(), "example.com:443", httpclient.WithAddrs(addr.String())))
		_, err := c.Get("https://example.com/")
		require.ErrorContains(t, err, "https")
	})
}

// An endpoint that needs mutual TLS of a mesh gets no request in cleartext.
func TestClientRejectsMeshEndpoint(t *testing.T) {
	addr := netip.MustParseAddrPort(server(t, "cleartext", 0))
	table := static.New(map[string][]resolve.Endpoint{"web": {{ID: resolve.ID{Addr: addr, Identity: "web.identity"}}}})
	web := httpclient.New(t.Context(), "web", httpclient.WithResolver(table), httpclient.WithTimeout(50*time.Millisecond))
	_, err := client(t, web).Get("http://web/")
	require.Error(t, err)
}

// An endpoint that requests it gets PING frames while no requests are in flight.
func TestClientPingWhileIdle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	pings, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		answered := false
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				const statusOK = "\x88" // in the static table of HPACK
				_ = framer.WriteHeaders(http2.HeadersFrameParam{
					StreamID: frame.StreamID, BlockFragment: []byte(statusOK), EndHeaders: true, EndStream: true,
				})
				answered = true
			case *http2.PingFrame:
				_ = framer.WritePing(true, frame.Data)
				if answered {
					select {
					case pings <- struct{}{}:
					case <-t.Context().Done():
					}
				}
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	table := static.New(map[string][]resolve.Endpoint{"web": {{ID: resolve.ID{
		Addr: netip.MustParseAddrPort(l.Addr().String()), Protocol: resolve.H2,
		PingInterval: 20 * time.Millisecond, PingTimeout: time.Minute, PingWhileIdle: true,
	}}}})
	rsp, err := client(t, httpclient.New(t.Context(), "web", httpclient.WithResolver(table))).Get("http://web/")
	require.NoError(t, err)
	rsp.Body.Close()
	for range 3 { // the first can be sent before the end of the request
		select {
		case <-pings:
		case <-time.After(time.Minute):
			require.Fail(t, "no PING")
		}
	}
}

func TestClientWaitReady(t *testing.T) {
	addr := netip.MustParseAddrPort(server(t, "ok", 0))
	table := static.New(nil)
	web := httpclient.New(t.Context(), "web", httpclient.WithResolver(table))
	over, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, web.WaitReady(over), context.DeadlineExceeded)
	ready := make(chan error)
	go func() { ready <- web.WaitReady(t.Context()) }()
	table.Set("web", resolve.Endpoint{ID: resolve.ID{Addr: addr}})
	require.NoError(t, <-ready)

	ctx, end := context.WithCancel(t.Context())
	ended := httpclient.New(ctx, "web", httpclient.WithResolver(table))
	end()
	require.ErrorIs(t, ended.WaitReady(t.Context()), layer.ErrClosed)
}

// The time limit ends with the response headers, so that a slow body is not cut off.
func TestClientTimeout(t *testing.T) {
	for limit := 100 * time.Millisecond; ; limit *= 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/body" {
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-time.After(3 * limit):
				io.WriteString(w, "late")
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(s.Close)
		web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithTimeout(limit))
		c := client(t, web)
		rsp, err := c.Get("http://web/body")
		if errors.Is(err, layer.ErrResponseHeaderTimeout) && limit < 10*time.Second {
			continue // the machine needs longer for the headers
		}
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, "late", string(got))
		_, err = c.Get("http://web/headers")
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		return
	}
}

// A POST is sent once, and a GET is sent again.
func TestClientRetry(t *testing.T) {
	var gets, posts atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count := &gets
		if r.Method == http.MethodPost {
			count = &posts
		}
		if count.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	c := client(t, httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String())))
	rsp, err := c.Get("http://web/")
	require.NoError(t, err)
	rsp.Body.Close()
	assert.Equal(t, http.StatusOK, rsp.StatusCode)
	rsp, err = c.Post("http://web/", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	rsp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
	assert.EqualValues(t, 2, gets.Load())
	assert.EqualValues(t, 1, posts.Load())
}

func TestClientEndpointLayer(t *testing.T) {
	var calls atomic.Int64
	count := func(next httplayer.Service) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
			calls.Add(1)
			return next.Call(ctx, req)
		})
	}
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(server(t, "ok", 0)),
		httpclient.WithEndpointLayer(count), httpclient.WithPolicy(balance.Policy{Picker: balance.RoundRobin()}))
	body(t, client(t, web), "http://web/")
	assert.EqualValues(t, 1, calls.Load())
	text := layer.Describe(web).String()
	for _, name := range []string{"client", "response_header_timeout", "retry", "queue", "balance", "endpoint_layer", "round robin"} {
		assert.Contains(t, text, name)
	}
}

// A policy changes without new connections.
func TestSetPolicy(t *testing.T) {
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(server(t, "ok", 0)), httpclient.WithStickySession("s"))
	body(t, client(t, web), "http://web/")
	require.NoError(t, web.SetPolicy(balance.Policy{Cost: balance.LeastRequest}))
	body(t, client(t, web), "http://web/")
	assert.EqualValues(t, 2, web.Endpoints()[0].Picks)
	assert.Contains(t, layer.Describe(web).String(), "least_request")
	assert.Contains(t, layer.Describe(web).String(), "hash, bound", "the session stays")
	require.Error(t, web.SetPolicy(balance.Policy{Decay: 1}))
}

// While the endpoints of the first set are gone, the second set gets all requests, and none fails. When
// one of the first set returns at its address, it gets them again.
func TestBackup(t *testing.T) {
	listen := func(addr, name string) *httptest.Server {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }))
		require.NoError(t, s.Listener.Close())
		s.Listener = l
		s.Start()
		return s
	}
	addr := freeport.Addr(t)
	first := listen(addr, "first")
	set := func(addrs ...string) resolve.Resolver {
		endpoints, err := static.Endpoints(addrs...)
		require.NoError(t, err)
		return static.New(map[string][]resolve.Endpoint{"web": endpoints})
	}
	web := httpclient.New(t.Context(), "web", httpclient.WithResolver(
		resolve.Merge(set(addr), resolve.WithPriority(set(server(t, "backup", 0), server(t, "backup", 0)), 1))))
	c := client(t, web)
	for range 50 {
		require.Equal(t, "first", body(t, c, "http://web/"))
	}
	first.Close()
	until := func(name string) {
		for row := 0; row < 50; row++ {
			if body(t, c, "http://web/") != name {
				row = -1
			}
		}
	}
	until("backup")
	first = listen(addr, "first again")
	defer first.Close()
	until("first again")
}

func TestNewArguments(t *testing.T) {
	for name, f := range map[string]func(){
		"httpclient: empty target": func() { httpclient.New(t.Context(), "") },
		`httpclient: dns: target "http://web/x": not a name that this resolver resolves: ` +
			"a URL or a path: want host:port, such as web.default:8080": func() { httpclient.New(t.Context(), "http://web/x") },
		`httpclient: dns: target "web:http": not a name that this resolver resolves: ` +
			"the port is not a number from 1 to 65535": func() { httpclient.New(t.Context(), "web:http") },
		"httpclient: nil resolver":                                   func() { httpclient.WithResolver(nil) },
		"httpclient: WithAddrs: no address":                          func() { httpclient.WithAddrs() },
		`httpclient: WithAddrs: address is "web", must be host:port`: func() { httpclient.WithAddrs("web") },
		"httpclient: WithTimeout is -1ns, must be at least 0":        func() { httpclient.WithTimeout(-1) },
		"httpclient: RetryPolicy.MaxAttempts is -1, must be 1 to 100": func() {
			httpclient.WithRetry(httplayer.RetryPolicy{MaxAttempts: -1})
		},
	} {
		assert.PanicsWithValue(t, name, f)
	}
}

// A server below a wrapped endpoint, as otelhttp.NewTransport wraps it.
func TestClientRoundTripperLayer(t *testing.T) {
	var trips atomic.Int64
	wrap := httplayer.RoundTripperLayer(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			trips.Add(1)
			return next.RoundTrip(r.Clone(r.Context()))
		})
	})
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(server(t, "ok", 0)), httpclient.WithEndpointLayer(wrap))
	c := client(t, web)
	assert.Equal(t, "ok", body(t, c, "http://web/"))
	rsp, err := c.Post("http://web/", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	rsp.Body.Close()
	assert.EqualValues(t, 2, trips.Load())
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// Each call of WithEndpointOptions adds options.
func TestClientEndpointOptions(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	var dials atomic.Int64
	c := client(t, httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()),
		httpclient.WithEndpointOptions(httplayer.WithHTTP2()),
		httpclient.WithEndpointOptions(httplayer.WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}))))
	assert.Equal(t, "HTTP/2.0", body(t, c, "http://web/"))
	assert.Equal(t, int64(1), dials.Load())
}

// A target beyond ASCII is resolved and compared with certificates in its form in DNS, as by net/http.
func TestInternationalizedHost(t *testing.T) {
	names := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	server.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		names <- hello.ServerName
		return nil, nil
	}}
	server.StartTLS()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	// The certificate is for another name: only the name that the client asks for matters.
	target := net.JoinHostPort("bücher.localhost", port)
	c := httpclient.New(ctx, target, httpclient.WithTLS(&tls.Config{InsecureSkipVerify: true}))
	rsp, err := (&http.Client{Transport: c}).Get("https://xn--bcher-kva.localhost:" + port)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, "xn--bcher-kva.localhost", <-names)
}
