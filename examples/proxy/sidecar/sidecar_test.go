package sidecar_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

func TestMain(m *testing.M) {
	if through := os.Getenv(connectThrough); through != "" {
		if err := connectPeer(through, os.Args[1:]); err != nil {
			os.Exit(1)
		}
		return
	}
	// Most parallel tests wait for time limits, so more of them may run than there are CPUs.
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	debug.SetGCPercent(800) // because the heap is small
	setInteropLogger()
	goleak.VerifyTestMain(m)
}

const webName = "web.example:80"

// testProxy is a proxy with its controller.
type testProxy struct {
	*sidecar.Proxy
	controllerAddr string
}

// ownHost is a loopback address that no other test uses, so that a closed port stays free.
// On 127.0.0.1, the next listener could receive the port.
const ownHost = "127.0.0.91:0"

// freeAddr returns an address without a listener. No other test uses the port.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", ownHost)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// serveController serves cfg at addr until the test ends or stop is called.
func serveController(t testing.TB, addr string, cfg controller.Config) (listenAddr string, stop func()) {
	t.Helper()
	ctl := controller.New(nil)
	require.NoError(t, ctl.Set(cfg))
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Serve(ctx, l) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.CompareAndSwap(false, true) {
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// settingsFor returns settings for a proxy on free ports of this machine.
func settingsFor(t testing.TB, controllerAddr string) settings.Settings {
	t.Helper()
	vars := map[string]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR":                controllerAddr,
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR":                "127.0.0.1:0",
		"LINKERD2_PROXY_INBOUND_LISTEN_ADDR":                 "127.0.0.1:0",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR":                   "127.0.0.1:0",
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR":                 "127.0.0.1:0",
		"LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD":               "5s",
		"LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT":      "120s", // soon
		"LINKERD2_PROXY_OUTBOUND_TCP_FAILFAST_TIMEOUT":       "120s", // soon
		"LINKERD2_PROXY_INBOUND_HTTP_FAILFAST_TIMEOUT":       "120s", // soon
		"LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT":     "1m",
		"LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT":            "20s", // on a machine that is busy
		"LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT":             "20s",
		"LINKERD2_PROXY_CONTROL_CONNECT_TIMEOUT":             "20s",
		"LINKERD2_PROXY_DESTINATION_PROFILE_INITIAL_TIMEOUT": "120s", // soon
		"LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MIN":    "5ms",
		"LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MAX":    "50ms",
		"LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MIN":     "5ms",
		"LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MAX":     "50ms",
		"LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES":        ".",
	}
	s, err := settings.Read(func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	})
	require.NoError(t, err)
	return s
}

func newTestProxy(t testing.TB, controllerAddr string, change ...func(*sidecar.Config)) *testProxy {
	t.Helper()
	c := sidecar.Config{Settings: settingsFor(t, controllerAddr)}
	for _, f := range change {
		f(&c)
	}
	p, err := sidecar.New(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &testProxy{Proxy: p, controllerAddr: controllerAddr}
}

// at returns a configuration in which name has these addresses.
func at(name string, addrs ...string) controller.Config {
	var d controller.Destination
	for i, a := range addrs {
		d.Endpoints = append(d.Endpoints, controller.Endpoint{
			Addr: netip.MustParseAddrPort(a), Labels: map[string]string{"pod": "pod-" + string(rune('a'+i))},
		})
	}
	return controller.Config{Destinations: map[string]controller.Destination{name: d}}
}

// backend is an HTTP server that responds with its name.
func backend(t testing.TB, name string) (addr string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Override", r.Header.Get("L5d-Dst-Override"))
		w.Header().Set("Trailer", "X-Sum")
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, name+" "+r.Host+" "+r.URL.RequestURI()+" "+string(body))
		w.Header().Set("X-Sum", "42")
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// client returns a standard client that sends everything through the proxy.
func (tn *testProxy) client(t testing.TB) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, tn.Addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get returns the status and the body.
func get(t asking, c *http.Client, url string) (int, string) {
	t.Helper()
	rsp, err := c.Get(url)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp.StatusCode, string(body)
}

func TestHTTPClient(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, backend(t, "a")))
	c := newTestProxy(t, ctl).client(t)

	rsp, err := c.Post("http://web.example/path?q=1", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "a web.example /path?q=1 hello", string(body))
	require.Equal(t, "42", rsp.Trailer.Get("X-Sum"))

	req, err := http.NewRequest(http.MethodGet, "http://other.example/", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("L5d-Dst-Override", webName)
	rsp, err = c.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err = io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "a other.example / ", string(body), "the host is the application's")
	require.Empty(t, rsp.Header.Get("X-Override"), "the override goes no further")
}

func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl on this machine")
	}
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, backend(t, "a")))
	tn := newTestProxy(t, ctl)
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		t.Run(version, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), curl, "-sS", version, "--noproxy", "*",
				"--connect-to", "web.example:80:"+tn.Addr, "-d", "hello", "http://web.example/path").CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, "a web.example /path hello", string(out))
		})
	}
}

func TestTrafficWithoutController(t *testing.T) {
	ctl, stop := serveController(t, freeAddr(t), at(webName, backend(t, "old-a"), backend(t, "old-b")))
	c := newTestProxy(t, ctl).client(t)
	for range 10 {
		status, body := get(t, c, "http://web.example/")
		require.Equal(t, http.StatusOK, status, body)
	}

	stop()
	for range 200 {
		status, body := get(t, c, "http://web.example/")
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, "old-")
	}

	serveController(t, ctl, at(webName, backend(t, "new")))
	deadline := time.Now().Add(soon)
	for {
		status, body := get(t, c, "http://web.example/")
		require.Equal(t, http.StatusOK, status, body)
		if strings.HasPrefix(body, "new ") {
			break
		}
		require.True(t, time.Now().Before(deadline), "traffic follows the controller that came back")
	}
	for range 50 {
		_, body := get(t, c, "http://web.example/")
		require.Contains(t, body, "new ", "and goes nowhere else")
	}
}

func TestSplitUpdate(t *testing.T) {
	cfg := at(webName, backend(t, "apex"))
	cfg.Destinations["leaf.example:80"] = at("leaf.example:80", backend(t, "leaf")).Destinations["leaf.example:80"]
	d := cfg.Destinations[webName]
	d.Profile = &controller.Profile{
		Name:   "web.example",
		Splits: []controller.Split{{Authority: "leaf.example:80", Weight: 1}},
	}
	cfg.Destinations[webName] = d
	ctl, _ := serveController(t, "127.0.0.1:0", cfg)
	c := newTestProxy(t, ctl).client(t)
	for range 20 {
		status, body := get(t, c, "http://web.example/")
		require.Equal(t, http.StatusOK, status, body)
		require.Equal(t, "leaf web.example / ", body)
	}
}

func TestErrorReasons(t *testing.T) {
	t.Parallel()
	cfg := at("empty.example:80")
	cfg.Destinations["dead.example:80"] = at("x", freeAddr(t)).Destinations["x"]
	ctl, _ := serveController(t, "127.0.0.1:0", cfg)
	tests := []struct {
		url    string
		status int
		want   []string
	}{
		{"http://empty.example/", 504, []string{"queue empty.example:80", "fail-fast", "no endpoints"}},
		{"http://unknown.example/", 504, []string{"unknown.example:80", "does not exist"}},
		{"http://dead.example/", 504, []string{"dead.example:80", "connection refused"}},
		{"http://127.0.0.1:1/", 502, []string{"127.0.0.1:1", "connection refused"}},
		{"http://web.example:0/", 404, []string{"the port must be from 1 to 65535"}},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			patiently(t, func(failFast func(*sidecar.Config)) (string, bool) {
				rsp, err := newTestProxy(t, ctl, failFast).client(t).Get(tt.url)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				header := rsp.Header.Get("L5d-Proxy-Error")
				return rsp.Status + ": " + header, rsp.StatusCode == tt.status &&
					!slices.ContainsFunc(tt.want, func(s string) bool { return !strings.Contains(header, s) })
			})
		})
	}
}

// patiently repeats test with longer and longer times until fail-fast, until it succeeds. On a busy
// machine, fail-fast may begin before the reason is known.
func patiently(t *testing.T, test func(failFast func(*sidecar.Config)) (got string, ok bool)) {
	t.Helper()
	for limit := 250 * time.Millisecond; ; limit *= 2 {
		got, ok := test(func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast, c.Outbound.TCPQueue.FailFast = limit, limit })
		if ok {
			return
		}
		require.Less(t, limit, 20*time.Second, got)
	}
}

func TestAdmin(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, backend(t, "a")))
	tn := newTestProxy(t, ctl)
	_, _ = get(t, tn.client(t), "http://web.example/")

	admin := "http://" + tn.Admin
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/live":  "live\n",
		"/ready": "ready\n",
	} {
		status, body := get(t, direct, admin+path)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, want, body)
	}
	tn.metrics(t, func(t require.TestingT, metrics string) {
		require.Contains(t, metrics, `request_total{authority="web.example:80",direction="outbound",dst_pod="pod-a",no_tls_reason="not_provided_by_service_discovery",`)
		require.Contains(t, metrics, `classification="success"`)
		require.Contains(t, metrics, `response_latency_ms_bucket`)
		require.Regexp(t, `outbound_http_balancer_endpoints{.*,dst="web.example:80",endpoint_state="ready",parent_.*} [1-9]`, metrics)
		require.Regexp(t, `outbound_http_balancer_p2c_updates_total{.*,dst="web.example:80",op="`, metrics)
	})

	_, tree := get(t, direct, admin+"/stack")
	for _, line := range []string{"limit ", "router ", "profiles ", "queue ", "balance ", "web.example:80"} {
		require.Contains(t, tree, line)
	}
	_, text := get(t, direct, admin+"/stack?o=json")
	var probe map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &probe))
	require.Equal(t, "proxy", probe["name"])
}

func TestTapEndpoint(t *testing.T) {
	addr := backend(t, "a")
	ctl, _ := serveController(t, "127.0.0.1:0", at(webName, addr))
	tn := newTestProxy(t, ctl, func(c *sidecar.Config) { c.Settings.Tap.Labels = map[string]string{"pod": "me"} })

	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{
		Limit: 1, Match: match.All(match.PathPrefix("/seen"), match.DestinationLabel("pod", "pod-a")),
	})
	require.NoError(t, err)
	_, err = stream.Header() // sent when the tap is in place
	require.NoError(t, err)

	c := tn.client(t)
	_, _ = get(t, c, "http://web.example/not")
	_, _ = get(t, c, "http://web.example/seen?secret=1")
	var events []*pb.TapEvent
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		events = append(events, e)
	}
	require.Len(t, events, 3)
	require.Equal(t, "/seen", events[0].GetHttp().GetRequestInit().GetPath())
	require.Equal(t, "web.example", events[0].GetHttp().GetRequestInit().GetAuthority())
	require.EqualValues(t, 200, events[1].GetHttp().GetResponseInit().GetHttpStatus())
	require.EqualValues(t, len("a web.example /seen?secret=1 "), events[2].GetHttp().GetResponseEnd().GetResponseBytes())
	for _, e := range events {
		require.EqualValues(t, netip.MustParseAddrPort(addr).Port(), e.GetDestination().GetPort())
		require.Equal(t, "pod-a", e.GetDestinationMeta().GetLabels()["pod"])
		require.Equal(t, "me", e.GetSourceMeta().GetLabels()["pod"])
		require.Equal(t, pb.TapEvent_OUTBOUND, e.GetProxyDirection())
	}
}

func TestNewReportsTakenAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := sidecar.Config{Settings: settingsFor(t, "127.0.0.1:1")}
	c.Settings.Tap.Listen = netip.MustParseAddrPort(l.Addr().String())
	_, err = sidecar.New(c, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "tap: ")
	require.ErrorContains(t, err, "in use")
}
