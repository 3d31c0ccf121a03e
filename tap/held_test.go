package tap

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

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
		require.EqualValues(t, 6, w.seen.Load())
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
