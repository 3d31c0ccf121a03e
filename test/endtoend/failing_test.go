package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// clientOf makes a client for three endpoints, and returns a function that makes one call. retry
// adds the client's default retry.
type clientOf func(t *testing.T, addrs []string, retry bool) (call func(context.Context) error)

// One of three endpoints immediately fails each call. With each client's defaults, it gets at most
// 1 % of the calls after the first 100, and not many more if it accepts connections and resets
// them.
func TestFailingEndpointIsAvoided(t *testing.T) {
	const first, calls = 100, 500
	grpclayer.Register("gotower")
	for _, tt := range []struct {
		name    string
		servers func(t *testing.T) []string
		client  clientOf
		retry   bool
	}{
		{"grpc unary, UNAVAILABLE", grpcServers, grpcUnary, false},
		{"grpc unary, UNAVAILABLE, retry", grpcServers, grpcUnary, true},
		{"grpc unary, refused", withRefused(grpcServers), grpcUnary, false},
		{"grpc stream, UNAVAILABLE", grpcServers, grpcStream, false},
		{"grpc stream, UNAVAILABLE, retry", grpcServers, grpcStream, true},
		{"http, 503", httpServers, httpClient, false},
		{"http, 503, retry", httpServers, httpClient, true},
		{"http, refused", withRefused(httpServers), httpClient, false},
		{"kit, error", httpServers, kitClient, false},
		{"kit, error, retry", httpServers, kitClient, true},
		{"kit, refused", withRefused(httpServers), kitClient, false},
		{"tcp, refused", withRefused(tcpServers), tcpClient, false},
		{"tcp, reset", tcpServers, tcpClient, false},
		{"proxy, 503", httpServers, proxyClient, false},
		{"proxy, 503, retry", httpServers, proxyClient, true},
		{"proxy, refused", withRefused(httpServers), proxyClient, false},
	} {
		for _, workers := range []int{1, 20} {
			t.Run(fmt.Sprintf("%s/workers=%d", tt.name, workers), func(t *testing.T) {
				call := tt.client(t, tt.servers(t), tt.retry)
				most := int64(calls / 100)
				switch {
				case tt.retry:
					most = 0
				case tt.name == "tcp, reset":
					most += int64(workers) // each may connect before it is known that the others were reset
				}
				require.Eventually(t, func() bool { return call(t.Context()) == nil }, time.Minute, time.Millisecond, "all endpoints fail")
				failed := failures(t, call, 1, first)
				assert.True(t, failed == 0 || !tt.retry, "%d of the first %d failed", failed, first)
				failed = failures(t, call, workers, calls)
				t.Logf("%d of %d failed", failed, calls)
				assert.LessOrEqual(t, failed, most)
			})
		}
	}
}

// failures makes n calls and returns how many failed.
func failures(t *testing.T, call func(context.Context) error, workers, n int) int64 {
	t.Helper()
	var remaining, failed atomic.Int64
	remaining.Store(int64(n))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for remaining.Add(-1) >= 0 {
				if err := call(t.Context()); err != nil {
					if failed.Add(1) == 1 {
						t.Log("the first failure:", err)
					}
				}
			}
		})
	}
	wg.Wait()
	return failed.Load()
}

// withRefused replaces the failing server by an address at which nothing listens.
func withRefused(servers func(t *testing.T) []string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		return append(servers(t)[1:], freeport.Addr(t))
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// httpServers starts three servers. The first one responds with 503.
func httpServers(t *testing.T) (addrs []string) {
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusOK, http.StatusOK} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		t.Cleanup(s.Close)
		addrs = append(addrs, s.Listener.Addr().String())
	}
	return addrs
}

// grpcServers starts three servers. The first one responds with UNAVAILABLE.
func grpcServers(t *testing.T) (addrs []string) {
	for _, code := range []codes.Code{codes.Unavailable, codes.OK, codes.OK} {
		l, s := listen(t), grpc.NewServer()
		pb.RegisterTestServiceServer(s, answering{code: code})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

type answering struct {
	pb.UnimplementedTestServiceServer
	code codes.Code
}

func (a answering) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return new(pb.SimpleResponse), status.Error(a.code, "always")
}

func (a answering) StreamingOutputCall(
	_ *pb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse],
) error {
	for range 3 {
		if a.code != codes.OK {
			break
		}
		if err := out.Send(new(pb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
	return status.Error(a.code, "always")
}

// tcpServers starts three servers. The first one resets each connection, and the others are echo
// servers.
func tcpServers(t *testing.T) (addrs []string) {
	for i := range 3 {
		l := listen(t)
		t.Cleanup(func() { l.Close() })
		addrs = append(addrs, l.Addr().String())
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go func() {
					defer conn.Close()
					if i == 0 {
						_ = conn.(*net.TCPConn).SetLinger(0)
						return
					}
					_, _ = io.Copy(conn, conn)
				}()
			}
		}()
	}
	return addrs
}

const target = "web.default:80"

func resolver(t *testing.T, addrs []string) resolve.Resolver {
	t.Helper()
	endpoints, err := static.Endpoints(addrs...)
	require.NoError(t, err)
	return static.New(map[string][]resolve.Endpoint{target: endpoints})
}

// get sends requests to target with c.
func get(t *testing.T, target string, c *http.Client) func(context.Context) error {
	t.Helper()
	t.Cleanup(c.CloseIdleConnections)
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+"/", http.NoBody)
		if err != nil {
			return err
		}
		rsp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		if _, err = io.Copy(io.Discard, rsp.Body); err == nil && rsp.StatusCode != http.StatusOK {
			err = errors.New(rsp.Status)
		}
		return err
	}
}

// httpClient is the client in the README.
func httpClient(t *testing.T, addrs []string, retry bool) func(context.Context) error {
	t.Helper()
	policy := httplayer.RetryPolicy{MaxAttempts: 1}
	if retry {
		policy = httplayer.RetryPolicy{}
	}
	web := httpclient.New(t.Context(), target,
		httpclient.WithResolver(resolver(t, addrs)), httpclient.WithTimeout(time.Minute), httpclient.WithRetry(policy))
	return get(t, target, &http.Client{Transport: web})
}

func grpcConn(t *testing.T, addrs []string, retry bool) pb.TestServiceClient {
	t.Helper()
	calls := grpclayer.NewStack().Timeout(time.Minute)
	if retry {
		calls = calls.Retry(grpclayer.RetryPolicy{CanRetry: func(*grpclayer.Call) bool { return true }})
	}
	cc, err := grpc.NewClient("gotower:///"+target, append(
		grpclayer.DialOptions("gotower", resolver(t, addrs), grpclayer.WithCallLayer(calls.Layer())),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return pb.NewTestServiceClient(cc)
}

func grpcUnary(t *testing.T, addrs []string, retry bool) func(context.Context) error {
	c := grpcConn(t, addrs, retry)
	return func(ctx context.Context) error {
		_, err := c.UnaryCall(ctx, new(pb.SimpleRequest))
		return err
	}
}

func grpcStream(t *testing.T, addrs []string, retry bool) func(context.Context) error {
	c := grpcConn(t, addrs, retry)
	return func(ctx context.Context) error {
		stream, err := c.StreamingOutputCall(ctx, new(pb.StreamingOutputCallRequest))
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// kitClient uses a go-kit client for each endpoint.
func kitClient(t *testing.T, addrs []string, retry bool) func(context.Context) error {
	t.Helper()
	tr := new(http.Transport)
	t.Cleanup(tr.CloseIdleConnections)
	sums := kitlayer.NewStack[int, int]().Timeout(time.Minute)
	if retry {
		sums = sums.Retry(layer.RetryPolicy[int, int]{})
	}
	svc := sums.Queue(1000, time.Minute).Service(balance.Resolve(t.Context(), resolver(t, addrs), balance.Config{Target: target},
		func(_ context.Context, to discover.Target) layer.Service[int, int] {
			return kitlayer.Service[int, int](kithttp.NewClient(
				http.MethodGet, &url.URL{Scheme: "http", Host: to.Endpoint.Addr.String()}, kithttp.EncodeJSONRequest,
				func(_ context.Context, rsp *http.Response) (any, error) {
					if rsp.StatusCode != http.StatusOK {
						return nil, errors.New(rsp.Status)
					}
					return rsp.StatusCode, nil
				},
				kithttp.SetClient(&http.Client{Transport: tr}),
			).Endpoint())
		}))
	return func(ctx context.Context) error {
		_, err := svc.Call(ctx, 1)
		return err
	}
}

// tcpClient connects, sends a byte and receives it.
func tcpClient(t *testing.T, addrs []string, _ bool) func(context.Context) error {
	t.Helper()
	svc := tcplayer.NewStack().Queue(1000, time.Minute).Service(balance.Resolve(t.Context(), resolver(t, addrs), balance.Config{Target: target, Policy: balance.Policy{Sample: balance.SampleHeaders}},
		func(ctx context.Context, to discover.Target) tcplayer.Service {
			return tcplayer.NewEndpoint(ctx, to.Endpoint.Addr.String())
		},
		balance.WithCompletion(tcplayer.UntilClosed)))
	return func(ctx context.Context) error {
		conn, err := svc.Call(ctx, tcplayer.Request{})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		return err
	}
}

// proxyClient sends its requests through the sidecar, like an application.
func proxyClient(t *testing.T, addrs []string, retry bool) func(context.Context) error {
	t.Helper()
	d := controller.Destination{Profile: &controller.Profile{
		Routes: []controller.Route{{Name: "all", Match: controller.Match{Path: "/.*"}, Retryable: retry}},
		Budget: &controller.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
	}}
	for _, addr := range addrs {
		d.Endpoints = append(d.Endpoints, controller.Endpoint{Addr: netip.MustParseAddrPort(addr)})
	}
	ctl := controller.New(nil)
	require.NoError(t, ctl.Set(controller.Config{Destinations: map[string]controller.Destination{target: d}}))
	return proxyClients(t, ctl, target)[0]
}

// proxyClients runs a sidecar with the controller, and returns a client for each target.
func proxyClients(t *testing.T, ctl *controller.Controller, targets ...string) (calls []func(context.Context) error) {
	t.Helper()
	l := listen(t)
	run(t, func(ctx context.Context) error { return ctl.Serve(ctx, l) })

	s, err := settings.Read(func(name string) (string, bool) {
		v, ok := map[string]string{
			"DESTINATION_SVC_ADDR":         l.Addr().String(),
			"OUTBOUND_LISTEN_ADDR":         "127.0.0.1:0",
			"INBOUND_LISTEN_ADDR":          "127.0.0.1:0",
			"ADMIN_LISTEN_ADDR":            "127.0.0.1:0",
			"CONTROL_LISTEN_ADDR":          "127.0.0.1:0",
			"DESTINATION_PROFILE_SUFFIXES": ".",
		}[name[min(len(settings.Prefix), len(name)):]]
		return v, ok
	})
	require.NoError(t, err)
	p, err := sidecar.New(sidecar.Config{Settings: s}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	run(t, p.Run)
	for _, target := range targets {
		calls = append(calls, get(t, target, &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 100,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, p.Addr)
			},
		}}))
	}
	return calls
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}
