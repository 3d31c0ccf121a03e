package httpclient_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer/httplayer"
)

// A behavior is one that the tests of net/http's client require. It runs with http.Transport and with a Transport of
// this package, and both must observe the same.
type behavior struct {
	tests string // those of net/http that require it, separated by spaces
	modes string // those it runs in; "" means all
	run   func(s *side)
}

// The modes of a behavior: HTTP/1.1, the same over TLS, and HTTP/2 over TLS.
const modes = "http https h2"

// TestNetHTTP runs the behaviors of net/http's own tests that do not reach into its internals.
func TestNetHTTP(t *testing.T) {
	for name, b := range behaviors() {
		for mode := range strings.FieldsSeq(modes) {
			if b.modes != "" && !slices.Contains(strings.Fields(b.modes), mode) {
				continue
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				observe := func(ours bool) []string {
					s := &side{T: t, mode: mode, ours: ours}
					defer s.end()
					b.run(s)
					return s.log
				}
				theirs := observe(false)
				require.NotEmpty(t, theirs)
				require.Equal(t, theirs, observe(true))
			})
		}
	}
}

func behaviors() map[string]behavior {
	all := make(map[string]behavior)
	for _, table := range []map[string]behavior{messageBehaviors, redirectBehaviors, connectionBehaviors, wireBehaviors} {
		maps.Copy(all, table)
	}
	return all
}

// Each test of net/http is that of a behavior, or skipped for a reason.
func TestNetHTTPIsComplete(t *testing.T) {
	if !strings.HasPrefix(runtime.Version(), "go1.26") {
		t.Skip("the tables are those of Go 1.26")
	}
	var have, want []string
	for _, b := range behaviors() {
		have = append(have, strings.Fields(b.tests)...)
	}
	for _, tests := range skipped {
		have = append(have, strings.Fields(tests)...)
	}
	for _, file := range []string{"client_test.go", "transport_test.go", "clientserver_test.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(build.Default.GOROOT, "src/net/http", file), nil, 0)
		if err != nil {
			t.Skip("no sources of net/http: ", err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
				want = append(want, strings.TrimPrefix(f.Name.Name, "Test"))
			}
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	require.Equal(t, want, slices.Compact(have))
}

// skipped has the tests of net/http without a behavior, by the reason.
var skipped = map[string]string{
	"it calls unexported functions or fields": "AltProtoCancellation ConnClosedBeforeRequestIsWritten HandlerAbortRacesBodyRead IdleConnH2Crash " +
		"InterruptWithPanic Is408 Issue32441 Issue61474 NewClientServerTest ShouldCopyHeaderOnRedirect TransportAutomaticHTTP2 " +
		"TransportAutomaticHTTP2_DefaultTransport TransportAutomaticHTTP2_Dial TransportAutomaticHTTP2_DialContext " +
		"TransportAutomaticHTTP2_DialTLS TransportAutomaticHTTP2_DialerAndTLSConfigSupportsHTTP2AndTLSConfig " +
		"TransportAutomaticHTTP2_ExpectContinueTimeout TransportAutomaticHTTP2_TLSConfig TransportAutomaticHTTP2_TLSNextProto " +
		"TransportDecrementConnWhenIdleConnRemoved TransportIdleCacheKeys TransportReqCancelerCleanupOnRequestBodyWriteError " +
		"TransportRequestReplayable TransportReturnsPeekError",
	"its field of http.Transport has no option": "NoCrashReturningTransportAltConn OnProxyConnectResponse TransportAltProto TransportClone " +
		"TransportConnectionCloseOnRequestDisableKeepAlive TransportDialTLS TransportDialTLSContext TransportMaxIdleConns " +
		"TransportProxyConnectHeader TransportProxyDialDoesNotMutateProxyConnectHeader TransportProxyGetConnectHeader TransportServerProtocols",
	"it counts goroutines, as goleak does for all tests of this package": "DontCacheBrokenHTTP2Conn IdleConnChannelLeak TransportGCRequest " +
		"TransportPersistConnContextLeakMaxConnsPerHost TransportPersistConnLeak TransportPersistConnLeakNeverIdle " +
		"TransportPersistConnLeakShortBody TransportProxyHTTPSConnectLeak",
	"it repeats a behavior many times": "CancelRequestWhenSharingConnection ErrorWriteLoopRace TransportConcurrency TransportGzipRecursive " +
		"TransportIdleConnCrash TransportResponseCancelRace",
	"it is about proxies; see proxy_test.go": "ProxyAuthHeader ProxyFromEnvironment ProxyFromEnvironmentLowerCase ProxyWithInfiniteHeader " +
		"RoundTripReturnsProxyError SOCKS5Proxy TransportDialPreservesNetOpProxyError TransportProxy",
	"it is about the server or a round tripper of its own": "ClientPopulatesNilResponseBody ClientRedirectResponseWithoutRequest " +
		"NoSniffExpectRequestBody WriteHeader0 WriteHeaderNoCodeCheck WriteHeaderNoCodeCheck_h1hijack",
	"it counts system calls, or expects those of a file": "ClientWrites TransportRequestWriteRoundTrip",
	"it needs the name server of the machine":            "TransportEventTraceRealDNS",
	"it is tested in package httplayer":                  "TransportIDNA",
	"ours differs: the body of CONNECT is the response":  "ConnectRequest TransportCONNECTBidi",
	"ours differs: a wrong Host is refused, not changed": "RequestSanitization",
	"ours differs: a connection is made for its request, or beyond its end": "ClientPropagatesTimeoutToContext TransportDiscardsUnneededConns " +
		"TransportMaxConnsPerHostDialCancellation TransportSocketLateBinding",
	"ours differs: over HTTP/2, a body that is longer than its Content-Length has no first bytes": "HandlerWritesTooMuch",
}

// side is http.Transport or ours in a behavior, and what it has observed.
type side struct {
	*testing.T

	mode string
	ours bool

	clients []func() // they end the clients
	servers []func() // they end the servers
	roots   *x509.CertPool
	log     []string
}

// end ends the clients and then the servers, which wait for the end of their connections.
func (s *side) end() {
	for _, f := range append(s.clients, s.servers...) {
		f()
	}
}

// see adds an observation, in which addresses have no port.
func (s *side) see(values ...any) {
	line := strings.TrimSuffix(fmt.Sprintln(values...), "\n")
	s.log = append(s.log, regexp.MustCompile(`(127\.0\.0\.1|localhost):\d+`).ReplaceAllString(line, "$1"))
}

// serve starts a server of the mode.
func (s *side) serve(h http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2 = s.mode == "h2"
	if s.mode == "http" {
		server.Start()
	} else {
		server.StartTLS()
		s.trust(server)
	}
	s.servers = append(s.servers, server.Close)
	return server
}

// trust lets the clients that are made later trust the certificate of server.
func (s *side) trust(server *httptest.Server) {
	if s.roots == nil {
		s.roots = x509.NewCertPool()
	}
	s.roots.AddCert(server.Certificate())
}

// connections starts a server of HTTP/1.1 that serves each connection by f, and returns its URL.
func (s *side) connections(f func(conn net.Conn, in *bufio.Reader)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	var all sync.WaitGroup
	all.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			all.Go(func() {
				defer conn.Close()
				f(conn, bufio.NewReader(conn))
			})
		}
	})
	s.servers = append(s.servers, func() { _ = l.Close() }, all.Wait)
	return "http://" + l.Addr().String()
}

// answers starts a server that answers each request by the bytes of response, and returns its URL.
func (s *side) answers(response string) string {
	return s.connections(func(conn net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if _, err = io.WriteString(conn, response); err != nil || strings.Contains(response, "close") {
				return
			}
		}
	})
}

// settings are the fields of http.Transport that a behavior sets.
type settings struct {
	maxConns       int
	maxIdle        int
	idleTimeout    time.Duration
	headerTimeout  time.Duration
	connectTimeout time.Duration
	noCompression  bool
	proxy          *url.URL
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	serverName     string
	insecure       bool
	unreachable    bool // shortens the wait of our requests for an endpoint
}

// client returns a client with the settings.
func (s *side) client(set settings) *http.Client {
	config := &tls.Config{RootCAs: s.roots, ServerName: set.serverName, InsecureSkipVerify: set.insecure}
	c := &http.Client{Transport: s.transport(set, config)}
	s.clients = append(s.clients, c.CloseIdleConnections)
	return c
}

func (s *side) transport(set settings, config *tls.Config) http.RoundTripper {
	if !s.ours {
		theirs := &http.Transport{
			TLSClientConfig: config, ForceAttemptHTTP2: true, MaxConnsPerHost: set.maxConns, MaxIdleConnsPerHost: set.maxIdle,
			IdleConnTimeout: set.idleTimeout, ResponseHeaderTimeout: set.headerTimeout, DisableCompression: set.noCompression,
			DialContext: set.dial, TLSHandshakeTimeout: set.connectTimeout, ExpectContinueTimeout: time.Second,
		}
		if set.proxy != nil {
			theirs.Proxy = http.ProxyURL(set.proxy)
		}
		return theirs
	}
	opts := []httpclient.Option{httpclient.WithTLS(config), httpclient.WithProxy(nil)}
	endpoint := func(o httplayer.EndpointOption) { opts = append(opts, httpclient.WithEndpointOptions(o)) }
	if set.maxConns > 0 {
		endpoint(httplayer.WithMaxConns(set.maxConns))
	}
	if set.maxIdle > 0 {
		endpoint(httplayer.WithMaxIdleConns(set.maxIdle))
	}
	if set.idleTimeout > 0 {
		endpoint(httplayer.WithIdleTimeout(set.idleTimeout))
	}
	if set.connectTimeout > 0 {
		endpoint(httplayer.WithConnectTimeout(set.connectTimeout))
	}
	if set.dial != nil {
		endpoint(httplayer.WithDialContext(set.dial))
	}
	if set.headerTimeout > 0 {
		opts = append(opts, httpclient.WithTimeout(set.headerTimeout))
	}
	if set.noCompression {
		opts = append(opts, httpclient.WithoutDecompression())
	}
	if set.unreachable {
		opts = append(opts, httpclient.WithQueue(1, time.Millisecond))
	}
	if set.proxy != nil {
		opts = append(opts, httpclient.WithProxy(http.ProxyURL(set.proxy)))
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.clients = append(s.clients, cancel)
	return httpclient.NewTransport(ctx, opts...)
}

// request returns a request of the test.
func (s *side) request(method, url string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(s.Context(), method, url, body)
	require.NoError(s, err)
	return req
}

// do sends req and observes the response with its body, and returns the body.
func (s *side) do(c *http.Client, req *http.Request) string {
	rsp, err := c.Do(req)
	if err != nil {
		s.see("error", kind(err))
		return ""
	}
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	rsp.Header.Del("Date")
	s.see(rsp.StatusCode, rsp.Proto, rsp.ContentLength, rsp.TransferEncoding, rsp.Uncompressed, rsp.Close, rsp.Header, rsp.Trailer)
	s.see(string(text), kind(err))
	return string(text)
}

// get is do for a GET request without a body.
func (s *side) get(c *http.Client, url string) string {
	return s.do(c, s.request(http.MethodGet, url, nil))
}

// kind returns what callers can find out about err without its text.
func kind(err error) string {
	if err == nil {
		return "none"
	}
	kinds := []string{"error"}
	for name, target := range map[string]error{
		"canceled": context.Canceled, "deadline": context.DeadlineExceeded, "unexpected EOF": io.ErrUnexpectedEOF,
		"no location": http.ErrNoLocation, "body read after close": http.ErrBodyReadAfterClose,
	} {
		if errors.Is(err, target) {
			kinds = append(kinds, name)
		}
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		kinds = append(kinds, "timeout")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		kinds = append(kinds, "certificate")
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}
