package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// counting yields n rows again and again, of which each has one request more
// each time.
func counting(n int) fake {
	return fake{
		top: func(ctx context.Context, req *tappb.TopRequest, yield func(*tappb.TopResponse, error) bool) {
			for turn := uint64(1); ctx.Err() == nil; turn++ {
				rsp := &tappb.TopResponse{Span: durationpb.New(time.Second), Omitted: 7}
				for i := range min(n, int(req.GetRows())) {
					rsp.Rows = append(rsp.Rows, &tappb.Row{
						Path: fmt.Sprintf("/%d", i), Count: turn, Successes: turn - 1, Open: 1, Rate: 2, P50: durationpb.New(time.Millisecond),
					})
				}
				if !yield(rsp, nil) {
					return
				}
				_ = backoff.Sleep(ctx, max(req.GetEvery().AsDuration(), time.Millisecond))
			}
		},
		watch: func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
			for ctx.Err() == nil {
				if !yield(tap.Event{ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 10 * time.Millisecond}}, nil) {
					return
				}
				_ = backoff.Sleep(ctx, time.Millisecond)
			}
		},
	}
}

// The totals and charts have the requests of the selected direction.
func TestTotals(t *testing.T) {
	rows := []*tappb.Row{{Direction: 1, Count: 5, Successes: 3, Open: 1, Rate: 2}, {Direction: 2, Count: 40, Rate: 20}, {Path: "(other)", Direction: 1, Count: 1}}
	for direction, want := range map[tap.Direction]sum{
		tap.Inbound: {Count: 6, Successes: 3, Open: 1, Rate: 2}, 0: {Count: 46, Successes: 3, Open: 1, Rate: 22},
	} {
		r := &run{config: Config{Totals: direction, Describe: func() layer.Node { return layer.Node{} }}}
		f := r.frame(&tappb.TopResponse{Rows: rows})
		require.Equal(t, want, f.Sum)
		require.Len(t, f.Rows, 3)
		require.Equal(t, want.Count, f.Bars.Of)
	}
}

func TestFrames(t *testing.T) {
	_, at := serve(t, Config{Registry: counting(300), Title: "web-0", Describe: func() layer.Node {
		return layer.Node{Name: "limit", Next: &layer.Node{Name: "endpoint", State: layer.State{{Key: "addr", Value: "a:1"}}}}
	}})
	l := listen(t, at+"/live")
	var h hello
	l.await("hello").into(t, &h)
	require.Equal(t, "web-0", h.Title)
	require.Positive(t, h.Started)
	var f frame
	measured := func() bool { return len(f.Points) > 0 && f.Points[len(f.Points)-1].P50 > 0 }
	for f.Sum.Count < 900 || !measured() || len(f.Routes) == 0 {
		f = frame{}
		l.await("frame").into(t, &f)
	}
	require.Len(t, f.Rows, shownRows)
	require.Len(t, f.Routes, shownRows)
	require.EqualValues(t, 107, f.Omitted, "those that were not counted alone, and those that are not shown")
	require.EqualValues(t, 300, f.Sum.Open, "of all rows")
	require.InDelta(t, 600, f.Sum.Rate, 0.1)
	require.Equal(t, time.Millisecond, f.Rows[0].P50)
	last := f.Points[len(f.Points)-1]
	require.Positive(t, last.Rate)
	require.Zero(t, last.Failures, "the one failure of each was in the first frame")
	require.InEpsilon(t, 10*time.Millisecond, last.P50, 0.05)
	require.Equal(t, "limit", f.Tree.Name)
	require.Equal(t, attr{"addr", "a:1"}, f.Tree.Next.State[0])
	require.Empty(t, f.Problems)
}

// All pages together cost as much as one, and no page costs nothing.
func TestLiveSharedByPages(t *testing.T) {
	t.Parallel()
	reg := new(tap.Registry)
	_, at := serve(t, Config{Registry: reg})
	watchers := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return watching(reg) == n }, 20*time.Second, time.Millisecond, "%d", n)
	}
	for range 2 {
		a, b := listen(t, at+"/live"), listen(t, at+"/live")
		watchers(3) // rows by path, rows by route, latencies
		requests := listen(t, at+"/tap")
		watchers(4)
		requests.leave()
		watchers(3)
		a.leave()
		b.await("frame")
		b.await("frame")
		watchers(3)
		b.leave()
		watchers(0)
	}
}

func watching(reg *tap.Registry) int { return reg.Describe().State.Get("watching").(int) }

// The timeouts of the server do not end streams. A stream without events sends heartbeats.
func TestStreamServerTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Registry: counting(1), Authorize: func(*http.Request) error { return nil }})
		conns := make(pipes)
		srv := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(conns) })
		transport := &http.Transport{DialContext: conns.dial}
		live := listenBy(t, transport, "http://localhost/live")
		requests := listenBy(t, transport, "http://localhost/tap?method=NONE")
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			live.await("frame")
			requests.await("batch")
		}
		live.leave()
		requests.leave()
		h.Shutdown()
		_ = srv.Close()
		serving.Wait()
	})
}

// pipes is a listener without a network, for bubbles.
type pipes chan net.Conn

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// The maxInspected requests are bounded, because each costs its caller time.
func TestTapMaxInspected(t *testing.T) {
	asked := make(chan uint32, 10)
	_, at := serve(t, Config{Registry: fake{watch: func(ctx context.Context, req *tappb.WatchRequest, _ func(tap.Event, error) bool) {
		asked <- req.GetMaxRps()
		<-ctx.Done()
	}}})
	listen(t, at+"/live").await("frame")
	require.EqualValues(t, latencySample, <-asked)
	listen(t, at+"/tap").await("batch")
	require.EqualValues(t, maxInspected, <-asked)
}

// A page shows the errors of its sources, and the data of the others.
func TestLiveProblems(t *testing.T) {
	_, at := serve(t, Config{Registry: fake{}, Describe: func() layer.Node { panic("no tree") }})
	l := listen(t, at+"/live")
	for range 2 {
		var f frame
		for len(f.Problems) == 0 {
			l.await("frame").into(t, &f)
		}
		require.Equal(t, []string{errNothing.Error()}, f.Problems, "once")
		require.Len(t, f.Tree.State, 1)
		require.Equal(t, "error", f.Tree.State[0][0])
		require.Regexp(t, `^panic at live_test\.go:[0-9]+: no tree$`, f.Tree.State[0][1])
	}
}

// A panic of the registry is an error on the page.
func TestLiveRegistryPanic(t *testing.T) {
	panicking := fake{
		watch: func(context.Context, *tappb.WatchRequest, func(tap.Event, error) bool) { panic("watch") },
		top:   func(context.Context, *tappb.TopRequest, func(*tappb.TopResponse, error) bool) { panic("top") },
	}
	_, at := serve(t, Config{Registry: panicking})
	l := listen(t, at+"/live")
	var f frame
	for len(f.Problems) < 2 {
		f = frame{}
		l.await("frame").into(t, &f)
	}
	require.Regexp(t, `^the registry: panic at live_test\.go:\d+: top$`, f.Problems[0])
	require.Regexp(t, `^the registry: panic at live_test\.go:\d+: watch$`, f.Problems[1])
	var p problemEvent
	listen(t, at+"/tap").await("problem").into(t, &p)
	require.Regexp(t, `^the registry: panic at live_test\.go:\d+: watch$`, p.Text)
}

// An error ends with its cause, even without a request.
func TestLiveProblemEnds(t *testing.T) {
	source := counting(1)
	var welcome atomic.Bool
	source.watch = func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		if !welcome.Load() {
			yield(tap.Event{}, errNothing)
			return
		}
		<-ctx.Done()
	}
	_, at := serve(t, Config{Registry: source})
	l := listen(t, at+"/live")
	var f frame
	for len(f.Problems) == 0 {
		l.await("frame").into(t, &f)
	}
	require.Equal(t, []string{errNothing.Error()}, f.Problems)
	welcome.Store(true)
	for frames := 0; len(f.Problems) > 0; frames++ {
		require.Less(t, frames, 1000)
		f = frame{}
		l.await("frame").into(t, &f)
	}
}

// A late rejection is shown.
func TestLiveLateProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &live{every: time.Second}
		var p problem
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.repeat(ctx, &p, func(context.Context) error {
				time.Sleep(l.every)
				return errNothing
			})
		}()
		time.Sleep(l.every / 2)
		for range 100 {
			time.Sleep(l.every)
			require.Equal(t, errNothing.Error(), p.get())
			time.Sleep(l.every)
		}
		cancel()
		<-done
	})
}

// A slow page blocks no other, and gets the latest state when it reads.
func TestLiveSlowPage(t *testing.T) {
	h := New(Config{Registry: counting(1)})
	h.live.every = time.Millisecond
	slow, leaveSlow := h.live.join()
	fast, leaveFast := h.live.join()
	require.Same(t, slow, fast)
	var read, unread share.Position
	frames := map[string]bool{}
	for len(frames) < 50 {
		c := fast.frames.Look(&read)
		if c.Fresh {
			frames[string(c.Value)] = true
		}
		<-c.Next
	}
	require.False(t, frames[string(slow.frames.Look(&unread).Value)], "a later frame than those that the other page has read")
	leaveSlow()
	require.Equal(t, 1, h.live.runs.Len())
	leaveFast()
	require.Zero(t, h.live.runs.Len())
}

// A page that never reads is disconnected, although its connection is open.
func TestStreamPageNotReading(t *testing.T) {
	t.Parallel()
	h, at := serve(t, Config{Registry: counting(shownRows)})
	h.writeTimeout = time.Second
	h.live.every = time.Millisecond
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(at, "http://"))
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return h.streams.Load() == 1 }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return h.streams.Load() == 0 }, 20*time.Second, 10*time.Millisecond)
}

// A client that disconnected while a frame was written is removed.
func TestStreamClosedClient(t *testing.T) {
	h := New(Config{Registry: counting(1)})
	h.live.every = time.Millisecond
	for _, target := range []string{"/live", "/tap"} {
		w := &gone{header: http.Header{}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost"+target, http.NoBody)
			r.RemoteAddr = "127.0.0.1:1"
			h.ServeHTTP(w, r)
		}()
		<-done
	}
}

type gone struct{ header http.Header }

func (g *gone) Header() http.Header       { return g.header }
func (g *gone) WriteHeader(int)           {}
func (g *gone) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }
func (g *gone) Flush()                    {}
