package tap

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// bounded is a context that ends long after a test should have.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test took too long"))
	t.Cleanup(cancel)
	return ctx
}

func TestFollowMergesProcesses(t *testing.T) {
	t.Parallel()
	a, b := start(t, "", ours(new(Registry))), start(t, "", linkerds(new(Registry)))
	traffic(t, a.reg, "/a")
	traffic(t, b.reg, "/b")
	paths := map[string]string{}
	for seen, err := range Follow(bounded(t), []Process{a.process(t, "one"), b.process(t, "two")}, nil) {
		require.NoError(t, err)
		if r := seen.Event.RequestInit; r != nil {
			paths[seen.From] = r.Path
		}
		if len(paths) == 2 {
			break
		}
	}
	require.Equal(t, map[string]string{"one": "/a", "two": "/b"}, paths)
	require.Eventually(t, func() bool { return a.reg.active.Load() == nil && b.reg.active.Load() == nil },
		20*time.Second, time.Millisecond, "nothing is left behind")
}

// A process that restarts yields an error and is watched again. The other one
// continues.
func TestFollowRestart(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*Registry) serving{"ours": ours, "linkerd's": linkerds} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, "", serve(new(Registry)))
			b := start(t, "", ours(new(Registry)))
			stop := traffic(t, a.reg, "/before")
			traffic(t, b.reg, "/b")
			var news error
			between := false
			for seen, err := range Follow(bounded(t), []Process{a.process(t, "a"), b.process(t, "b")}, nil) {
				if err != nil {
					require.Equal(t, "a", seen.From)
					require.Equal(t, Event{}, seen.Event)
					news = err
					continue
				}
				between = between || news != nil && seen.From == "b"
				r := seen.Event.RequestInit
				if r != nil && r.Path == "/before" && news == nil {
					stop()
					a.stop()
				}
				if between && a.reg != nil {
					restarted := start(t, a.addr, serve(new(Registry)))
					traffic(t, restarted.reg, "/after")
					a.reg = nil
				}
				if r != nil && r.Path == "/after" {
					break
				}
			}
			require.ErrorContains(t, news, "a: tap: ")
			require.Equal(t, codes.Unavailable, status.Code(news))
			require.True(t, between)
		})
	}
}

func TestFollowLateProcess(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	errs, started := 0, false
	for _, err := range Follow(bounded(t), []Process{at(t, addr, "late")}, nil) {
		if err == nil {
			break
		}
		require.ErrorContains(t, err, "late: ")
		require.Equal(t, codes.Unavailable, status.Code(err), err.Error())
		if errs++; errs > 2 && !started {
			started = true
			traffic(t, start(t, addr, ours(new(Registry))).reg, "/")
		}
	}
	require.True(t, started)
}

// A rejection is reported once, and the other processes continue.
func TestFollowRejection(t *testing.T) {
	t.Parallel()
	strict := start(t, "", ours(new(Registry)))
	liberal := start(t, "", ours(NewRegistry(WithBodies(10, func(_ string, b []byte) []byte { return b }))))
	traffic(t, liberal.reg, "/")
	refusals, seenAny := 0, 0
	processes := []Process{strict.process(t, "strict"), liberal.process(t, "liberal")}
	for seen, err := range Follow(bounded(t), processes, &tappb.WatchRequest{BodyBytes: 1}) {
		if err != nil {
			require.ErrorContains(t, err, "strict: tap: watch: ")
			require.Equal(t, codes.PermissionDenied, status.Code(err))
			refusals++
			continue
		}
		require.Equal(t, "liberal", seen.From)
		if seenAny++; seenAny > 30 && refusals > 0 {
			break
		}
	}
	require.Equal(t, 1, refusals)

	t.Run("of all", func(t *testing.T) {
		var errs []error
		for _, err := range Follow(bounded(t), processes, &tappb.WatchRequest{Match: match.Method("")}) {
			errs = append(errs, err)
		}
		require.Len(t, errs, 2)
		require.Equal(t, codes.InvalidArgument, status.Code(errs[0]))
	})
}

// A condition that linkerd's tap does not support is rejected.
func TestFollowLinkerdUnsupported(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	for want, req := range map[string]*tappb.WatchRequest{
		"conditions on headers":   {Headers: []*tappb.HeaderMatch{{Name: "a", Value: &tappb.HeaderMatch_Present{Present: true}}}},
		"conditions on responses": {Response: &tappb.ResponseMatch{Failures: true}},
		"samples":                 {Sample: 0.5},
	} {
		t.Run(want, func(t *testing.T) {
			n := 0
			for _, err := range Follow(bounded(t), []Process{p.process(t, "proxy")}, req) {
				n++
				require.EqualError(t, err, "proxy: tap: this process has linkerd's tap only, which has no "+want)
			}
			require.Equal(t, 1, n)
		})
	}
}

func TestFollowLinkerdWithFields(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	traffic(t, p.reg, "/")
	req := &tappb.WatchRequest{Fields: true, Explain: true, BodyBytes: 10, Sample: 1, Match: match.Path("/")}
	for seen, err := range Follow(bounded(t), []Process{p.process(t, "proxy")}, req) {
		require.NoError(t, err)
		if seen.Event.RequestInit != nil {
			require.NotNil(t, seen.Event.RequestInit.Headers)
			break
		}
	}
}

// A process without requests is watched without errors.
func TestFollowIdleProcess(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*Registry) serving{"ours": ours, "linkerd's": linkerds} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, stop := startInside(t, serve(new(Registry)))
				defer stop()
				ctx, cancel := context.WithTimeoutCause(t.Context(), 2500*time.Millisecond, errors.New("enough"))
				defer cancel()
				var errs []error
				for _, err := range Follow(ctx, []Process{p}, nil) {
					errs = append(errs, err)
				}
				require.Len(t, errs, 1)
				require.EqualError(t, errs[0], "tap: follow: enough")
			})
		})
	}
}

func TestFollowProcessWithoutTap(t *testing.T) {
	t.Parallel()
	p := start(t, "", tapless())
	n := 0
	for _, err := range Follow(bounded(t), []Process{p.process(t, "web")}, nil) {
		require.ErrorIs(t, err, errNoTap)
		require.ErrorContains(t, err, "web: it serves neither gotower's tap nor linkerd's")
		require.Equal(t, codes.Unimplemented, status.Code(err))
		if n++; n == 2 {
			break // it is asked again: it may be another one by then
		}
	}
}

// The limit ends the sequence.
func TestFollowLimit(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*Registry) serving{"ours": ours, "linkerd's": linkerds} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "", serve(new(Registry)))
			traffic(t, p.reg, "/")
			inits, ends := 0, 0
			for seen, err := range Follow(bounded(t), []Process{p.process(t, "p")}, &tappb.WatchRequest{Limit: 3}) {
				require.NoError(t, err)
				if seen.Event.RequestInit != nil {
					inits++
				}
				if seen.Event.ResponseEnd != nil {
					ends++
				}
			}
			require.Equal(t, 3, inits)
			require.Equal(t, 3, ends)
		})
	}
}

func TestFollowDuration(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*Registry) serving{"ours": ours, "linkerd's": linkerds} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "", serve(new(Registry)))
			traffic(t, p.reg, "/")
			for limit, n := time.Second, 0; n == 0; limit *= 2 { // connecting may take a second, too
				begun := time.Now()
				req := &tappb.WatchRequest{Duration: durationpb.New(limit)}
				for _, err := range Follow(bounded(t), []Process{p.process(t, "p")}, req) {
					require.NoError(t, err)
					n++
				}
				require.GreaterOrEqual(t, time.Since(begun), limit)
			}
		})
	}
}

func TestFollowLongestDuration(t *testing.T) {
	t.Parallel()
	p := start(t, "", ours(new(Registry)))
	traffic(t, p.reg, "/")
	for e, err := range Follow(bounded(t), []Process{p.process(t, "p")}, &tappb.WatchRequest{Duration: durationpb.New(math.MaxInt64)}) {
		require.NoError(t, err)
		require.NotNil(t, e.Event.RequestInit)
		return
	}
	t.Fatal("the sequence ended at once")
}

func TestFollowNoProcesses(t *testing.T) {
	t.Parallel()
	for range Follow(t.Context(), nil, nil) {
		t.Fatal("there is nothing to see")
	}
}

func TestFollowProcessWithoutConnection(t *testing.T) {
	t.Parallel()
	n := 0
	for _, err := range Follow(bounded(t), []Process{{Name: "p"}}, nil) {
		n++
		require.ErrorContains(t, err, "the process has no connection")
	}
	require.Equal(t, 1, n)
}

// badStream panics in the first message that it sends.
type badStream struct{ grpc.ClientStream }

func (badStream) SendMsg(any) error { panic("interceptor") }

// An interceptor that panics runs on a goroutine of Follow and FollowTop.
func TestFollowConnectionPanic(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() grpc.ClientStream{
		"open": func() grpc.ClientStream { panic("interceptor") },
		"send": func() grpc.ClientStream { return badStream{} },
	} {
		t.Run(name, func(t *testing.T) {
			panics := grpc.WithStreamInterceptor(
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
					return open(), nil
				})
			conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()), panics)
			require.NoError(t, err)
			defer conn.Close()
			requirePanic := func(err error) {
				require.ErrorContains(t, err, "panic at follow_test.go")
				require.ErrorContains(t, err, "interceptor")
			}
			for _, err := range Follow(bounded(t), []Process{{Name: "p", Conn: conn}}, nil) {
				requirePanic(err)
				break
			}
			for _, err := range FollowTop(bounded(t), []Process{{Name: "p", Conn: conn}}, nil) {
				requirePanic(err)
				break
			}
		})
	}
}

// Invalid numbers are rejected for any process, and the process is not called again.
func TestFollowInvalidNumbers(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]*tappb.WatchRequest{
		"negative duration": {Duration: durationpb.New(-time.Second)},
		"invalid duration":  {Duration: &durationpb.Duration{Seconds: 1, Nanos: 2e9}},
		"NaN":               {Sample: math.NaN()},
		"more than all":     {Sample: 1.5},
		"less than none":    {Sample: -1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range []serving{ours(new(Registry)), linkerds(new(Registry))} {
				var errs []error
				for _, err := range Follow(bounded(t), []Process{start(t, "", s).process(t, "p")}, req) {
					errs = append(errs, err)
				}
				require.Len(t, errs, 1)
				require.Equal(t, codes.InvalidArgument, status.Code(errs[0]), errs[0])
			}
		})
	}
}

func TestFollowManyRequests(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	traffic(t, p.reg, "/")
	for _, err := range Follow(bounded(t), []Process{p.process(t, "p")}, nil) {
		require.NoError(t, err)
		break
	}
}

// Of a process without a rate, no more requests than the maximum are shown.
func TestFollowLinkerdRate(t *testing.T) {
	t.Parallel()
	p := start(t, "", linkerds(new(Registry)))
	traffic(t, p.reg, "/")
	begun, inits := time.Now(), 0
	for seen, err := range Follow(bounded(t), []Process{p.process(t, "p")}, &tappb.WatchRequest{MaxRps: 5, Limit: 8}) {
		require.NoError(t, err)
		if seen.Event.RequestInit != nil {
			inits++
		}
	}
	require.Equal(t, 8, inits)
	require.GreaterOrEqual(t, time.Since(begun), 900*time.Millisecond, "five in the first second")
}

// An invalid rate of one process does not change the rates of the others.
func TestRowMergerInvalidRates(t *testing.T) {
	m := &rowMerger{rows: map[mergedKey]*tappb.Row{}}
	for _, rate := range []float64{math.NaN(), 2, math.Inf(1), -7, math.NaN(), 3} {
		m.add("p", &tappb.TopResponse{Rows: []*tappb.Row{{Path: "/", Rate: rate}}})
	}
	require.InDelta(t, 5, m.top(0).GetRows()[0].GetRate(), 0)
}

// running is a process with a gRPC server on 127.0.0.1 that can be stopped.
type running struct {
	addr string
	reg  *Registry
	srv  *Server
	stop func()
}

// serving is the service of a process.
type serving struct {
	reg      *Registry
	srv      *Server
	register func(*grpc.Server)
	opts     []grpc.ServerOption
}

// ours is a process with gotower's tap.
func ours(reg *Registry) serving {
	srv := NewServer(reg)
	return serving{reg: reg, srv: srv, register: func(g *grpc.Server) { srv.Register(g) }}
}

// linkerds is a process with linkerd's tap only.
func linkerds(reg *Registry) serving {
	srv := NewServer(reg)
	return serving{reg: reg, srv: srv, register: func(g *grpc.Server) { pb.RegisterTapServer(g, srv) }}
}

// tapless is a process without a tap.
func tapless() serving { return serving{register: func(*grpc.Server) {}} }

// start starts a process, at addr if that is not "".
func start(t testing.TB, addr string, s serving) *running {
	t.Helper()
	if addr == "" {
		addr = freeport.Addr(t) // and so it is between this process and the next one there
	}
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	g := grpc.NewServer(s.opts...)
	s.register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	p := &running{addr: l.Addr().String(), reg: s.reg, srv: s.srv, stop: func() { g.Stop(); <-done }}
	t.Cleanup(p.stop)
	return p
}

// fromHere has clients that come from this machine.
type fromHere struct{ net.Listener }

type fromHereConn struct{ net.Conn }

func (l fromHere) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return fromHereConn{conn}, nil
}

func (fromHereConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// startInside starts a process in the bubble of a test, where nothing takes time,
// and returns it as one that is followed.
func startInside(t *testing.T, s serving) (p Process, stop func()) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer(s.opts...)
	s.register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(fromHere{l})
	}()
	conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	return Process{Name: "p", Conn: conn}, func() {
		require.NoError(t, conn.Close())
		g.Stop()
		<-done
	}
}

func (p *running) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return dial(t, p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// process is p as one that is followed.
func (p *running) process(t testing.TB, name string) Process {
	t.Helper()
	return Process{Name: name, Conn: p.dial(t)}
}

// at is a process that may not be there.
func at(t testing.TB, addr, name string) Process {
	t.Helper()
	return (&running{addr: addr}).process(t, name)
}

// quickly returns an option with short backoffs, so that tests do not wait.

// traffic sends requests until the test ends, or the function is called.
func traffic(t testing.TB, reg *Registry, path string) (stop func()) {
	t.Helper()
	svc := stand(reg, endpoint{&reply{status: 200}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			_, _ = svc.Call(ctx, get(path))
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// foreign is a stream of a client of another machine.
type foreign struct {
	grpc.ServerStreamingServer[tappb.TopResponse]
	ctx context.Context
}

func (f foreign) Context() context.Context { return f.ctx }
