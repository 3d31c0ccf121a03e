package tap

import (
	"context"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

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
	stream := p.watch(t.Context(), t, &tappb.WatchRequest{Limit: requesters * requests})
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
	var got count
	for {
		m, err := stream.Recv()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		got.add(watchEventOf(m))
	}
	require.Positive(t, got.dropped, "else this shows nothing")
	require.Equal(t, got.happened(requesters*requests), got.sent+got.dropped)
	require.Equal(t, []string{strconv.Itoa(got.dropped)}, stream.Trailer()[droppedTrailer])
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
