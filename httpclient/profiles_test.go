package httpclient_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	netapi "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/file"
	profilesource "github.com/gotower/gotower/profiles/linkerd"
	"github.com/gotower/gotower/resolve"
	endpointsource "github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/resolve/static"
)

// flaky is a server that fails the first attempt of each request with a path below /flaky, and
// answers requests below /slow only after they were canceled.
type flaky struct {
	*httptest.Server
	attempts atomic.Int64 // below /flaky
}

func newFlaky(t *testing.T, name string) *flaky {
	t.Helper()
	f := &flaky{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the connection only then
		switch {
		case strings.HasPrefix(r.URL.Path, "/flaky") && f.attempts.Add(1)%2 == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/slow"):
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, name+r.Header.Get("X-Route"))
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *flaky) addr() string { return f.Listener.Addr().String() }

// backendsOf resolves the names in addrs.
func backendsOf(t *testing.T, addrs map[string]string) *static.Resolver {
	t.Helper()
	targets := make(map[string][]resolve.Endpoint)
	for name, addr := range addrs {
		endpoints, err := static.Endpoints(addr)
		require.NoError(t, err)
		targets[name] = endpoints
	}
	return static.New(targets)
}

// outcome returns the body of the response to a request, or its status if it is not 200.
func outcome(t *testing.T, c *http.Client, method, path string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://web.test"+path, strings.NewReader("order"))
	require.NoError(t, err)
	rsp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	if rsp.StatusCode != http.StatusOK {
		return rsp.Status, nil
	}
	return string(text), nil
}

// requireEventually repeats a request until its outcome is want.
func requireEventually(t *testing.T, c *http.Client, path, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, err := outcome(t, c, http.MethodGet, path)
		return err == nil && got == want
	}, time.Minute, 5*time.Millisecond)
}

// A plain http.Client follows the routes of a file: timeouts, retries, header changes and the split,
// and a change of the file.
func TestWithProfilesFile(t *testing.T) {
	v1, v2 := newFlaky(t, "v1"), newFlaky(t, "v2")
	path := filepath.Join(t.TempDir(), "web.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write(`
target: web.test
routes:
- match: {path: /flaky/orders}
  retry: {nonIdempotent: true}
- match: {pathPrefix: /flaky}
- match: {pathPrefix: /slow}
  timeout: 10ms
- match: {pathPrefix: /marked}
  requestHeader: {set: {x-route: marked}}
split: {web-v1.test: 1}
`)
	web := httpclient.New(t.Context(), "web.test", httpclient.WithProfiles(file.New(path)),
		httpclient.WithResolver(backendsOf(t, map[string]string{"web-v1.test:80": v1.addr(), "web-v2.test:80": v2.addr()})))
	c := client(t, web)
	for request, want := range map[string]string{
		"POST /flaky/orders": "v1", "GET /flaky/1": "503 Service Unavailable", "GET /marked/1": "v1marked", "GET /other": "v1",
	} {
		v1.attempts.Store(0)
		method, path, _ := strings.Cut(request, " ")
		got, err := outcome(t, c, method, path)
		require.NoError(t, err, request)
		assert.Equal(t, want, got, request)
	}
	_, err := outcome(t, c, http.MethodGet, "/slow")
	require.ErrorIs(t, err, layer.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, web.WaitReady(t.Context()))
	require.Len(t, web.Endpoints(), 1)

	write("target: web.test\nsplit: {web-v2.test: 1}\n")
	requireEventually(t, c, "/", "v2")
	require.Len(t, web.Endpoints(), 2, "the endpoints of the earlier backend stay for a while")
	require.NoError(t, web.SetPolicy(balance.Policy{Picker: balance.RoundRobin()}))
	require.Error(t, web.SetPolicy(balance.Policy{Decay: -1}))
}

// One side of a 50:50 split has no server. It keeps its share, or not, as the profile says.
func TestWithProfilesSplit(t *testing.T) {
	v1 := newFlaky(t, "v1")
	var source profiles.Static
	p := profiles.Profile{Targets: []profiles.Target{
		{Authority: "default/backend/rule/0", Weight: 1}, {Authority: "outbound|80||web", Weight: 1},
	}}
	source.Set("web.test:80", &p)
	web := httpclient.New(t.Context(), "web.test:80", httpclient.WithProfiles(&source), httpclient.WithQueue(0, 0),
		httpclient.WithRetry(httplayer.RetryPolicy{MaxAttempts: 1}), // an attempt draws again
		httpclient.WithResolver(static.New(map[string][]resolve.Endpoint{
			"default/backend/rule/0": {{ID: resolve.ID{Addr: netip.MustParseAddrPort(v1.addr())}}},
			"outbound|80||web":       {},
		})))
	c := client(t, web)
	const n = 400
	failures := func() (failed int) {
		for range n {
			if _, err := outcome(t, c, http.MethodGet, "/"); err != nil {
				require.ErrorIs(t, err, layer.ErrNotReady)
				failed++
			}
		}
		return failed
	}
	assert.InDelta(t, n/2, failures(), 6*10)

	available := p
	available.Distribution = profiles.RandomAvailable
	source.Set("web.test:80", &available)
	require.Eventually(t, func() bool { return failures() == 0 }, time.Minute, time.Millisecond)
}

// Requests without a route are retried as without a profile, and a route has the backends of its
// policy. A backend has the TLS configuration of its endpoint.
func TestWithProfilesBackends(t *testing.T) {
	v1, secure := newFlaky(t, "v1"), httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "secure")
	}))
	defer secure.Close()
	meshed := &resolve.Endpoint{ID: resolve.ID{
		Addr: netip.MustParseAddrPort(secure.Listener.Addr().String()), ServerName: "example.com", Identity: "web.ns.serviceaccount",
	}}
	var source profiles.Static
	source.Set("web.test:80", &profiles.Profile{Routes: []profiles.Route{{
		Match: profiles.PathPrefix("/meshed"),
		Backends: []profiles.Backend{
			{Target: profiles.Target{Weight: 1}, Endpoint: meshed, Balancing: profiles.Balancing{Decay: time.Second, QueueCapacity: 1}},
		},
	}, {
		Match: profiles.PathPrefix("/gone"),
		Backends: []profiles.Backend{
			{Target: profiles.Target{Authority: "not/a/name", Weight: 1}},
		},
	}}})
	var asked atomic.Value
	web := httpclient.New(t.Context(), "web.test", httpclient.WithProfiles(&source),
		httpclient.WithEndpointTLS(func(target discover.Target) *tls.Config {
			if target.Endpoint.Identity == "" {
				return nil
			}
			asked.Store(target.Endpoint.Identity)
			return secure.Client().Transport.(*http.Transport).TLSClientConfig
		}))
	c := client(t, web)
	got, err := outcome(t, c, http.MethodGet, "/meshed")
	require.NoError(t, err)
	assert.Equal(t, "secure", got)
	assert.Equal(t, "web.ns.serviceaccount", asked.Load())
	_, err = outcome(t, c, http.MethodGet, "/gone")
	require.ErrorContains(t, err, "backend not/a/name")

	web = httpclient.New(t.Context(), "web.test:80", httpclient.WithProfiles(&source), httpclient.WithQueue(0, 0),
		httpclient.WithResolver(backendsOf(t, map[string]string{"web.test:80": v1.addr()})))
	got, err = outcome(t, client(t, web), http.MethodGet, "/flaky")
	require.NoError(t, err)
	assert.Equal(t, "v1", got, "retried by the policy of the client")
	_, err = outcome(t, client(t, web), http.MethodGet, "/meshed")
	require.ErrorContains(t, err, "needs WithEndpointTLS")
}

// controller is a destination controller of linkerd. Each name of a profile and each target of a
// split has the endpoint in addrs.
type controller struct {
	destination.UnimplementedDestinationServer
	profiles chan *destination.DestinationProfile
	addrs    map[string]string
}

func (s *controller) GetProfile(_ *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile]) error {
	for {
		select {
		case p := <-s.profiles:
			if err := out.Send(p); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (s *controller) Get(req *destination.GetDestination, out grpc.ServerStreamingServer[destination.Update]) error {
	update := &destination.Update{Update: &destination.Update_NoEndpoints{NoEndpoints: &destination.NoEndpoints{}}}
	if addr, err := netip.ParseAddrPort(s.addrs[req.GetPath()]); err == nil {
		ip := addr.Addr().As4()
		number := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
		update.Update = &destination.Update_Add{Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{{
			Addr: &netapi.TcpAddress{Ip: &netapi.IPAddress{Ip: &netapi.IPAddress_Ipv4{Ipv4: number}}, Port: uint32(addr.Port())},
		}}}}
	}
	if err := out.Send(update); err != nil {
		return err
	}
	<-out.Context().Done()
	return out.Context().Err()
}

// A client without a proxy follows the service profile and the endpoints of linkerd's controller.
func TestWithProfilesLinkerd(t *testing.T) {
	v1, v2 := newFlaky(t, "v1"), newFlaky(t, "v2")
	s := &controller{profiles: make(chan *destination.DestinationProfile, 1), addrs: map[string]string{
		"web.test:80": v1.addr(), "web-v2.test:80": v2.addr(),
	}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	destination.RegisterDestinationServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	below := func(path string) *destination.RequestMatch {
		return &destination.RequestMatch{Match: &destination.RequestMatch_Path{Path: &destination.PathMatch{Regex: path + ".*"}}}
	}
	profile := &destination.DestinationProfile{
		FullyQualifiedName: "web.test",
		Routes: []*destination.Route{
			{Condition: below("/flaky/orders"), IsRetryable: true},
			{Condition: below("/flaky")},
			{Condition: below("/slow"), Timeout: durationpb.New(10 * time.Millisecond)},
		},
		RetryBudget: &destination.RetryBudget{RetryRatio: 0.2, MinRetriesPerSecond: 10, Ttl: durationpb.New(10 * time.Second)},
	}
	s.profiles <- profile
	web := httpclient.New(t.Context(), "web.test:80",
		httpclient.WithProfiles(profilesource.New(conn)), httpclient.WithResolver(endpointsource.New(conn)))
	c := client(t, web)
	got, err := outcome(t, c, http.MethodPost, "/flaky/orders")
	require.NoError(t, err)
	assert.Equal(t, "v1", got, "retried")
	got, err = outcome(t, c, http.MethodGet, "/flaky/1")
	require.NoError(t, err)
	assert.Equal(t, "503 Service Unavailable", got, "not retried")
	_, err = outcome(t, c, http.MethodGet, "/slow")
	require.ErrorIs(t, err, layer.ErrTimeout)

	s.profiles <- &destination.DestinationProfile{
		FullyQualifiedName: "web.test", DstOverrides: []*destination.WeightedDst{{Authority: "web-v2.test:80", Weight: 1}},
	}
	requireEventually(t, c, "/", "v2")
}

func TestWithProfilesPanics(t *testing.T) {
	require.PanicsWithValue(t, "httpclient: WithProfiles: nil source", func() { httpclient.WithProfiles(nil) })
}
