package grpclayer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/leastrequest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// The tests beside grpc-go's policies use real servers and clients of grpc-go, with connections in
// memory and the clock of a bubble. So the latencies are those of the servers on any machine.

// inBubble runs a test with its own clock.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// replica is one of several servers. It has five workers, and its calls take 2 to 6 ms.
type replica struct {
	pb.UnimplementedTestServiceServer
	addr  string
	at    atomic.Pointer[bufconn.Listener] // nil while the replica is stopped
	calls atomic.Int64
	act   atomic.Pointer[func(ctx context.Context) error] // instead of a success; nil for none
	grpc  *grpc.Server
	done  chan struct{}

	workers chan struct{}
}

func (r *replica) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	r.calls.Add(1)
	if act := r.act.Load(); act != nil {
		if err := (*act)(ctx); err != nil {
			return nil, err
		}
	}
	r.workers <- struct{}{}
	time.Sleep(2*time.Millisecond + rand.N(4*time.Millisecond))
	<-r.workers
	return &pb.SimpleResponse{}, nil
}

func (r *replica) acts(f func(ctx context.Context) error) { r.act.Store(&f) }

func (r *replica) start() {
	l := bufconn.Listen(64 << 10)
	r.grpc, r.done = grpc.NewServer(grpc.WaitForHandlers(true)), make(chan struct{})
	pb.RegisterTestServiceServer(r.grpc, r)
	go func(s *grpc.Server, done chan struct{}) {
		defer close(done)
		_ = s.Serve(l)
	}(r.grpc, r.done)
	r.at.Store(l)
}

func (r *replica) stop() {
	r.at.Store(nil)
	r.grpc.Stop()
	<-r.done
}

func replicas(t *testing.T, n int) (all []*replica) {
	t.Helper()
	for i := range n {
		r := &replica{addr: fmt.Sprintf("10.0.0.%d:80", i+1), workers: make(chan struct{}, 5)}
		r.start()
		t.Cleanup(r.stop)
		all = append(all, r)
	}
	return all
}

// dial connects to one of the replicas.
func dial(rs []*replica) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		for _, r := range rs {
			if l := r.at.Load(); l != nil && r.addr == addr {
				return l.DialContext(ctx)
			}
		}
		return nil, syscall.ECONNREFUSED
	})
}

const peersName = "gotower-test" // TestMain registers it

// policies are ours and those of grpc-go.
var policies = []string{"gotower", "round_robin", "least_request_experimental"}

// newClient returns a client of the replicas with a policy. The options are for ours.
func newClient(t *testing.T, policy string, rs []*replica, opts ...grpclayer.Option) *client {
	t.Helper()
	var addrs []string
	state := resolver.State{}
	for _, r := range rs {
		addrs = append(addrs, r.addr)
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r.addr}}})
	}
	insecurely := grpc.WithTransportCredentials(insecure.NewCredentials())
	var cc *grpc.ClientConn
	var err error
	if policy == "gotower" {
		endpoints, err := static.Endpoints(addrs...)
		require.NoError(t, err)
		source := static.New(map[string][]resolve.Endpoint{"web": endpoints})
		cc, err = grpc.NewClient(peersName+":///web", append(grpclayer.DialOptions(peersName, source, opts...), insecurely, dial(rs))...)
		require.NoError(t, err)
	} else {
		source := manual.NewBuilderWithScheme("manual")
		source.InitialState(state)
		cc, err = grpc.NewClient("manual:///web", insecurely, dial(rs), grpc.WithResolvers(source),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+policy+`":{}}]}`))
		require.NoError(t, err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	c := &client{stub: pb.NewTestServiceClient(cc), rs: rs}
	_, err = c.stub.UnaryCall(t.Context(), new(pb.SimpleRequest), grpc.WaitForReady(true))
	require.NoError(t, err)
	return c
}

type client struct {
	stub pb.TestServiceClient
	rs   []*replica
}

// outcome has the results of some calls.
type outcome struct {
	failed int
	shares []float64 // of the replicas
	times  []time.Duration
}

func (o *outcome) quantile(q float64) time.Duration {
	return o.times[int(q*float64(len(o.times)-1))]
}

// send sends calls on several goroutines, until each has sent so many and the time is over.
func (c *client) send(goroutines, each int, atLeast, deadline time.Duration) outcome {
	before := make([]int64, len(c.rs))
	for i, r := range c.rs {
		before[i] = r.calls.Load()
	}
	var o outcome
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(atLeast)
	for range goroutines {
		all.Go(func() {
			for i := 0; i < each || time.Now().Before(end); i++ {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				start := time.Now()
				_, err := c.stub.UnaryCall(ctx, new(pb.SimpleRequest))
				took := time.Since(start)
				cancel()
				mu.Lock()
				o.times = append(o.times, took)
				if err != nil {
					o.failed++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(o.times)
	for i, r := range c.rs {
		o.shares = append(o.shares, float64(r.calls.Load()-before[i])/float64(len(o.times)))
	}
	return o
}

// One call in a thousand ends with an error of the application. All replicas get the same load, as
// with the policies of grpc-go, and calls take as long.
func TestPeersApplicationErrors(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, code := range []codes.Code{codes.Unknown, codes.PermissionDenied} {
			p90 := make(map[string]time.Duration)
			for _, policy := range policies {
				rs := replicas(t, 3)
				for _, r := range rs {
					var n atomic.Int64
					r.acts(func(context.Context) error {
						if n.Add(1)%1000 == 500 {
							return status.Error(code, "of the application")
						}
						return nil
					})
				}
				o := newClient(t, policy, rs).send(12, 300, 0, time.Minute)
				p90[policy] = o.quantile(0.9)
				t.Logf("%v, %s: shares %.3f, p90 %v, %d failed", code, policy, o.shares, p90[policy], o.failed)
				if policy == "gotower" {
					assert.Less(t, slices.Max(o.shares)*3, 1.1, "%v", o.shares)
					assert.NotZero(t, o.failed)
				}
			}
			assert.LessOrEqual(t, p90["gotower"].Seconds(), 1.1*min(p90[policies[1]], p90[policies[2]]).Seconds(), "p90 %v", p90)
		}
	})
}

// Two seconds after one UNAVAILABLE, the replica has 80 % of its share again.
func TestPeersOneFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, policy := range policies {
			rs := replicas(t, 3)
			c := newClient(t, policy, rs)
			c.send(6, 100, 0, time.Minute)
			var once sync.Once
			rs[0].acts(func(context.Context) (err error) {
				once.Do(func() { err = status.Error(codes.Unavailable, "once") })
				return err
			})
			first := c.send(6, 10, 2*time.Second, time.Minute)
			o := c.send(6, 10, time.Second, time.Minute)
			t.Logf("%s: shares %.3f in the first two seconds, then %.3f", policy, first.shares, o.shares)
			assert.Equal(t, 1, first.failed)
			assert.Greater(t, o.shares[0], 0.8/3, policy)
		}
	})
}

// A replica that is killed and restarts at the same address has its full share two seconds later, and
// at most one of the calls that a client sends one after another has failed.
func TestPeersRestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, policy := range policies {
			rs := replicas(t, 3)
			c := newClient(t, policy, rs)
			c.send(12, 50, 0, time.Minute)
			failed := make(chan int)
			go func() { failed <- c.send(1, 10, 2300*time.Millisecond, time.Minute).failed }()
			time.Sleep(100 * time.Millisecond)
			rs[0].stop()
			time.Sleep(200 * time.Millisecond)
			rs[0].start()
			n := <-failed // two seconds later
			if policy != "gotower" {
				t.Logf("%s: %d failed, shares %.3f", policy, n, c.send(12, 50, 0, time.Minute).shares)
				continue
			}
			o := c.send(12, 500, 0, time.Minute)
			t.Logf("%s: %d failed, shares %.3f", policy, n, o.shares)
			assert.LessOrEqual(t, n, 1)
			assert.Greater(t, o.shares[0], 0.9/3)
		}
	})
}

// Few calls go to a replica that fails, hangs or is slow, and none of them fails with a retry.
func TestPeersTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for name, act := range map[string]func(ctx context.Context) error{
			"fails": func(context.Context) error { return status.Error(codes.Unavailable, "always") },
			"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"slow": func(ctx context.Context) error {
				select {
				case <-time.After(2 * time.Second):
				case <-ctx.Done():
				}
				return nil
			},
		} {
			for _, policy := range append(slices.Clone(policies), "gotower, retry") {
				troubled(t, name, act, policy)
			}
		}
	})
}

func troubled(t *testing.T, name string, act func(ctx context.Context) error, policy string) {
	t.Helper()
	rs := replicas(t, 3)
	var c *client
	deadline, each := time.Second, 250
	switch policy {
	case "gotower":
		c = newClient(t, policy, rs)
	case "gotower, retry":
		retry := grpclayer.RetryPolicy{AttemptTimeout: deadline, CanRetry: func(*grpclayer.Call) bool { return true }}
		c = newClient(t, "gotower", rs, grpclayer.WithCallLayer(grpclayer.NewStack().Retry(retry).Layer()))
		deadline = time.Minute
	default:
		c, each = newClient(t, policy, rs), 8
	}
	c.send(8, 20, 0, time.Minute)
	rs[0].acts(act)
	o := c.send(8, each, 0, deadline)
	t.Logf("%s, %s: %.2f %% of %d failed", name, policy, 100*float64(o.failed)/float64(len(o.times)), len(o.times))
	switch policy {
	case "gotower":
		assert.LessOrEqual(t, float64(o.failed)/float64(len(o.times)), 0.01, name)
	case "gotower, retry":
		assert.Zero(t, o.failed, name)
	}
}
