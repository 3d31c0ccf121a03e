package tap

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// In the bubble, time passes only when all goroutines are blocked, and no event is read. If
// a request waited for a watcher, the test would deadlock.
func TestSlowWatcherNeverDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		for i := range defaultMaxTaps {
			watch(t, reg, match.All(), 1<<32-1, i%2 == 0)
		}
		svc := stand(reg, respond("hello"))
		start := time.Now()
		for range 2000 {
			send(t, svc, get("/"))
		}
		require.Zero(t, time.Since(start))
	})
}

func TestSlowWatcherDropsRequest(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 4))
	w := watch(t, reg, match.All(), 5, false)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/0")) // q r e
	rsp, err := svc.Call(t.Context(), get("/1"))
	require.NoError(t, err) // q fits, r does not
	send(t, svc, get("/2")) // q does not
	require.EqualValues(t, 1, w.inFlight.Load(), "a request that is not shown is not waited for")
	got := events(w)
	require.Equal(t, "qreq", kinds(got))

	require.NoError(t, rsp.Body.Close()) // e fits again: the rest is attempted
	send(t, svc, get("/3"))
	got = events(w)
	require.Equal(t, "eqre", kinds(got))
	require.Equal(t, uint64(1), got[0].ID.Stream)
	require.Equal(t, uint64(3), got[1].ID.Stream, "request 2 counted, and showed nothing")
	require.EqualValues(t, 2, w.dropped.Load(), "a response and an init")
	require.EqualValues(t, 4, w.seen.Load())
}

func TestSlowWatcherDropsCountTowardLimit(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 3))
	w := watch(t, reg, match.All(), 2, false)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/0"))
	require.False(t, isDone(w))
	send(t, svc, get("/1"))
	require.True(t, isDone(w))
	require.Equal(t, "qre", kinds(events(w)))
}

// The limit of Watch counts what was sent. A request whose first event does not fit does not use it up.
func TestSlowWatcherDropsDoNotCount(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 3))
	w := watchOn(t, reg, &tappb.WatchRequest{Limit: 2})
	svc := stand(reg, respond("x"))
	for range 3 {
		send(t, svc, get("/0"))
	}
	require.EqualValues(t, 2, w.dropped.Load())
	require.EqualValues(t, 1, w.seen.Load())
	require.False(t, isDone(w))
	require.Equal(t, "qre", kinds(events(w)))
	reg.refresh()
	send(t, svc, get("/1"))
	require.True(t, isDone(w))
	got := events(w)
	require.Equal(t, "qre", kinds(got))
	require.EqualValues(t, 3, got[0].ID.Stream)
	require.Zero(t, w.inFlight.Load())
}

func TestSlowWatcherOtherWatchers(t *testing.T) {
	reg := new(Registry)
	never := watch(t, reg, match.All(), 1<<32-1, true)
	reads := watch(t, reg, match.All(), 1<<32-1, true)
	svc := stand(reg, respond("x"))
	var got int
	for range 1000 {
		send(t, svc, get("/"))
		got += len(events(reads))
	}
	require.Equal(t, 3000, got)
	require.Zero(t, reads.dropped.Load())
	require.Len(t, events(never), 400, "the buffer of spec §1")
	// 133 whole requests and an init fit; then a response and an end were
	// tried, and one init for each of the others.
	require.EqualValues(t, 2+866, never.dropped.Load())
}

func TestReceiverClosed(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	svc := stand(reg, respond("hello"))
	rsp, err := svc.Call(t.Context(), get("/"))
	require.NoError(t, err)
	reg.close(w)
	require.Nil(t, w.buf.Load(), "what was buffered is free at once")
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b), "the request goes on")
	require.Zero(t, w.dropped.Load())
	send(t, svc, get("/"))
	require.EqualValues(t, 1, w.seen.Load(), "no request is looked at any more")
}

// A request may find a watcher that has been closed since.
func TestReceiverClosedDuringMatch(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	present := reg.active.Load()
	reg.close(w)
	svc := stand(reg, respond("x")).(*tapped[*call, *reply])
	_, err := svc.watched(t.Context(), get("/"), present)
	require.NoError(t, err)
	require.Zero(t, w.inFlight.Load())
}

// At most 1 MiB for one watcher, for any requests.
func TestMemoryOfSlowWatcher(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, size := range map[string]int{"small": 16, "large": 8 << 10, "huge": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
				return &reply{header: fields{{"x-big", strings.Repeat("r", size)}}}, nil
			}))
			before := heap()
			w := watch(t, reg, match.All(), 1<<32-1, true)
			for range 500 {
				req := get(strings.Repeat("p", size))
				req.header = fields{{"x-big", strings.Repeat("q", size)}}
				_, err := svc.Call(t.Context(), req)
				require.NoError(t, err)
			}
			require.Less(t, heap()-before, int64(1<<20))
			require.Positive(t, w.dropped.Load())
			require.NotEmpty(t, events(w))
			require.EqualValues(t, maxText, w.buf.Load().room.Load(), "all room is back")
		})
	}
}

// count adds up the events of a watcher, and the dropped ones that were
// reported.
type count struct{ shown, sent, dropped int }

func (c *count) add(e Event) {
	switch {
	case e.Dropped > 0:
		c.dropped += int(e.Dropped)
		return
	case e.RequestInit != nil:
		c.shown++
	}
	c.sent++
}

// happened returns the number of events of requests: three of each shown request, and one
// of each other.
func (c *count) happened(requests int) int { return 3*c.shown + requests - c.shown }

// In any order of requests, ends and reads, sent + dropped = happened. This
// holds at each report, and at the end in the trailer.
func TestDropsReportedExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacity := rapid.IntRange(1, 9).Draw(rt, "capacity")
		held := rapid.Bool().Draw(rt, "kept back")
		steps := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) { checkDrops(t, capacity, held, steps) })
	})
}

func checkDrops(t *testing.T, capacity int, held bool, steps []int) {
	srv := NewServer(NewRegistry(WithCapacity(0, capacity)), WithAllowRemote())
	svc := stand(srv.reg, respond("x"))
	req := &tappb.WatchRequest{Limit: 1 << 40}
	if held {
		req.Response = &tappb.ResponseMatch{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent, ended := make(chan Event), make(chan error)
	var trailer metadata.MD
	go func() {
		ended <- gotowerTap{server: srv}.Watch(req, watchStream{ctx: ctx, trailer: &trailer, send: func(m *tappb.WatchResponse) error {
			sent <- watchEventOf(m)
			return nil
		}})
	}()
	synctest.Wait()
	var got count
	var open []*reply
	requests := 0
	for _, step := range steps {
		switch {
		case step <= 1:
			requests++
			rsp, err := svc.Call(t.Context(), get("/"))
			require.NoError(t, err)
			open = append(open, rsp)
		case step == 2 && len(open) > 0:
			require.NoError(t, open[0].Body.Close())
			open = open[1:]
		case step == 3:
			takeOne(sent, &got)
		}
	}
	for _, rsp := range open {
		require.NoError(t, rsp.Body.Close())
	}
	for takeOne(sent, &got) {
	}
	require.Equal(t, got.happened(requests), got.sent+got.dropped)
	cancel()
	require.Error(t, <-ended)
	require.Equal(t, []string{strconv.Itoa(got.dropped)}, trailer[droppedTrailer])
	require.EqualValues(t, got.dropped, srv.reg.Describe().State.Get("dropped"))
}

// takeOne reports whether an event was sent when all goroutines are blocked.
func takeOne(sent <-chan Event, got *count) bool {
	synctest.Wait()
	select {
	case e := <-sent:
		got.add(e)
		return true
	default:
		return false
	}
}

// The same over a connection, with concurrent requests and a slow reader.
func TestDropsReportedExactlyOverGRPC(t *testing.T) {
	const requesters, requests = 4, 1500
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("hello"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := p.watch(ctx, t, &tappb.WatchRequest{})
	long := "/" + strings.Repeat("l", 2<<10)
	var all sync.WaitGroup
	for range requesters {
		all.Go(func() {
			for range requests {
				rsp, err := svc.Call(context.Background(), get(long))
				if err != nil {
					t.Error(err)
					return
				}
				_ = rsp.Body.Close()
			}
		})
	}
	all.Wait()
	dropped := p.reg.Describe().State.Get("dropped")
	var got count
	// A report of dropped events is sent before events that are in the buffer already.
	for uint64(got.dropped) != dropped || got.happened(requesters*requests) != got.sent+got.dropped {
		m, err := stream.Recv()
		require.NoError(t, err)
		got.add(watchEventOf(m))
	}
	require.Positive(t, got.dropped, "else this shows nothing")
}

// A drop is reported at once, even if no event follows. One event is too large
// for the buffer.
func TestDropsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		var got []Event
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e, err := range reg.Watch(ctx, &tappb.WatchRequest{}) {
				if err == nil {
					got = append(got, e)
				}
			}
		}()
		synctest.Wait()
		send(t, stand(reg, respond("x")), get(strings.Repeat("p", maxText+1)))
		synctest.Wait()
		require.Equal(t, []Event{{Dropped: 1}}, got)
		send(t, stand(reg, respond("x")), get("/"))
		synctest.Wait()
		require.Equal(t, "?qre", kinds(got))
		cancel()
		<-ended
	})
}

// linkerd's API reports drops in the trailer only.
func TestDropsInObserveTrailerOnly(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 1))
	w := watch(t, reg, match.All(), 1, false)
	send(t, stand(reg, respond("x")), get("/"))
	var got []Event
	require.NoError(t, w.reader(false, func(e Event) error { got = append(got, e); return nil }).run(t.Context()))
	require.Equal(t, "q", kinds(got))
	require.EqualValues(t, 2, w.dropped.Load())
}

func heapNow() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An event must not keep a long request line in memory by a path that is a small part of
// it.
func TestMemoryOfLongQueries(t *testing.T) {
	reg := new(Registry)
	svc := Layer(reg, httplayer.HTTP{}, Inbound)(layer.Func[*http.Request, *http.Response](
		func(_ context.Context, r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		}))
	before := heapNow()
	w := watchOn(t, reg, &tappb.WatchRequest{})
	for range 500 {
		line := "GET http://web/a?" + strings.Repeat("q", 20<<10) + " HTTP/1.1\r\nHost: web\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		require.NoError(t, err)
		r.RemoteAddr = "127.0.0.1:4242"
		rsp, err := svc.Call(t.Context(), r)
		require.NoError(t, err)
		_ = rsp.Body.Close()
	}
	require.Less(t, heapNow()-before, int64(1<<20))
	require.Len(t, w.buf.Load().events, 400)
	require.Equal(t, "/a", events(w)[0].RequestInit.Path)
}

// An event does not keep long labels or content types in memory.
func TestMemoryOfNamesAndTypes(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	svc := Layer[*bodied, *reply](reg, longNames{newTee()}, Inbound)(layer.Func[*bodied, *reply](
		func(_ context.Context, b *bodied) (*reply, error) {
			_, err := io.Copy(io.Discard, b.Body)
			return &reply{
				header: fields{{"content-type", strings.Repeat("t", 20<<10)}},
				Body:   io.NopCloser(strings.NewReader("answer")),
			}, err
		}))
	before := heapNow()
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	for range 500 {
		req := saying("question")
		req.header = fields{{"content-type", strings.Repeat("t", 20<<10)}}
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
	}
	require.Less(t, heapNow()-before, int64(1<<20))
	require.NotEmpty(t, events(w))
	require.EqualValues(t, maxText, w.buf.Load().room.Load(), "all room is back")
}

// longNames returns long labels of every client.
type longNames struct{ withBodies }

func (longNames) SourceLabels(*bodied) map[string]string {
	return map[string]string{"client_id": strings.Repeat("n", 10<<10)}
}

// With a condition on the response, the events of a request are sent at its
// end. The number of a stream and the limit count matching requests.
func TestWatchByResponse(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Limit: 2, Fields: true, Response: &tappb.ResponseMatch{Failures: true}})
	status := 0
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		if status == 0 {
			return nil, errors.New("boom")
		}
		return &reply{status: status, Body: io.NopCloser(strings.NewReader("x")), header: fields{{"A", "b"}}, trailer: fields{{"C", "d"}}}, nil
	}))
	for range 3 {
		status = 200
		send(t, svc, get("/good"))
	}
	require.Empty(t, events(w))

	status = 503
	rsp, err := svc.Call(t.Context(), get("/bad"))
	require.NoError(t, err)
	require.Empty(t, events(w), "kept back")
	require.EqualValues(t, 1, w.buf.Load().held.Load())
	require.NoError(t, rsp.Body.Close())
	got := events(w)
	require.Equal(t, "qre", kinds(got))
	for _, e := range got {
		require.Equal(t, StreamID{0, 0}, e.ID)
		require.Equal(t, serverAddr, e.Destination)
	}
	require.Equal(t, "/bad", got[0].RequestInit.Path)
	require.Equal(t, []Field{{"a", "b"}}, got[1].ResponseInit.Headers)

	open := []*reply{}
	for range 3 {
		rsp, err := svc.Call(t.Context(), get("/bad"))
		require.NoError(t, err)
		open = append(open, rsp)
	}
	status = 0
	_, err = svc.Call(t.Context(), get("/none"))
	require.Error(t, err)
	require.Equal(t, "qe", kinds(events(w)))
	require.True(t, isDone(w), "the limit counts those that match, and three others do not hold it up")
	for _, rsp := range open {
		require.NoError(t, rsp.Body.Close())
	}
	require.Empty(t, events(w))
	require.Zero(t, w.dropped.Load())
	require.Zero(t, w.buf.Load().held.Load())
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
}

func TestWatchSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		w := watchOn(t, reg, &tappb.WatchRequest{Response: &tappb.ResponseMatch{SlowerThan: durationpb.New(time.Second)}})
		var takes time.Duration
		svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
			time.Sleep(takes)
			return &reply{status: 200}, nil
		}))
		for _, takes = range []time.Duration{0, time.Second, time.Second + 1} {
			_, err := svc.Call(t.Context(), get("/"))
			require.NoError(t, err)
		}
		got := events(w)
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, time.Second+1, got[2].ResponseEnd.SinceRequestInit)
	})
}

// The number and the bytes of held requests are bounded. Each further request counts as one
// dropped event.
func TestHeldRequestsBounded(t *testing.T) {
	answer := func(header string) service {
		return serve(func(context.Context, *call) (*reply, error) {
			return &reply{status: 500, Body: io.NopCloser(strings.NewReader("")), header: fields{{"x", header}}}, nil
		})
	}
	failures := &tappb.WatchRequest{Fields: true, Response: &tappb.ResponseMatch{Failures: true}}
	open := func(t *testing.T, svc service, n int, path string) (all []*reply) {
		t.Helper()
		for range n {
			rsp, err := svc.Call(t.Context(), get(path))
			require.NoError(t, err)
			all = append(all, rsp)
		}
		return all
	}
	finish := func(t *testing.T, all []*reply) {
		t.Helper()
		for _, rsp := range all {
			require.NoError(t, rsp.Body.Close())
		}
	}
	t.Run("number", func(t *testing.T) {
		reg := NewRegistry(WithCapacity(0, 6))
		w := watchOn(t, reg, failures)
		all := open(t, stand(reg, answer("")), 10, "/")
		require.EqualValues(t, 6, w.buf.Load().held.Load())
		require.EqualValues(t, 4, w.dropped.Load())
		require.EqualValues(t, 6, reg.Describe().Children[0].State.Get("held"))
		finish(t, all)
		require.Equal(t, "qreqre", kinds(events(w)), "the buffer has room for six events")
		require.EqualValues(t, 4+4, w.dropped.Load(), "once for each request that is not shown")
		require.EqualValues(t, 2, w.seen.Load(), "the limit counts what is shown")
		require.Zero(t, w.inFlight.Load(), "a request that does not fit at its end has left")
		require.Zero(t, w.buf.Load().held.Load())
	})
	t.Run("bytes of the request", func(t *testing.T) {
		reg := new(Registry)
		w := watchOn(t, reg, failures)
		all := open(t, stand(reg, answer("")), 10, strings.Repeat("p", maxText/4))
		require.EqualValues(t, 3, w.buf.Load().held.Load())
		require.EqualValues(t, 7, w.dropped.Load())
		require.GreaterOrEqual(t, w.buf.Load().room.Load(), int64(0))
		finish(t, all)
		require.Equal(t, "qreqreqre", kinds(events(w)))
		require.EqualValues(t, 7, w.dropped.Load())
		require.EqualValues(t, maxText, w.buf.Load().room.Load(), "all room is back")
	})
	t.Run("bytes of the response", func(t *testing.T) {
		reg := new(Registry)
		w := watchOn(t, reg, failures)
		all := open(t, stand(reg, answer(strings.Repeat("h", maxText/4))), 10, "/")
		require.EqualValues(t, 7, w.dropped.Load())
		finish(t, all)
		require.Equal(t, "qreqreqre", kinds(events(w)))
		require.EqualValues(t, 7, w.dropped.Load())
		require.EqualValues(t, maxText, w.buf.Load().room.Load())
		require.Zero(t, w.buf.Load().held.Load())
	})
}

// The bodies of a request that can no longer be shown use no memory of the buffer.
func TestHeldRequestsLostBodies(t *testing.T) {
	reg := NewRegistry(WithBodies(1<<10, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{Fields: true, BodyBytes: 10, Response: &tappb.ResponseMatch{}})
	svc := talking(reg, func(_ context.Context, b *bodied) (*reply, error) {
		_, err := io.Copy(io.Discard, b.Body)
		return &reply{header: fields{{"x", strings.Repeat("h", maxText)}}, Body: io.NopCloser(strings.NewReader("answer"))}, err
	})
	rsp, err := svc.Call(t.Context(), saying("question"))
	require.NoError(t, err)
	_, err = io.ReadFull(rsp.Body, make([]byte, 3))
	require.NoError(t, err)
	require.Equal(t, maxText-w.buf.Load().room.Load(), int64(len("content-type")+len("text/question")+fieldOverhead+len("POST/")), "that of the request's header")
	require.NoError(t, rsp.Body.Close())
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
	require.EqualValues(t, 1, w.dropped.Load())
}
