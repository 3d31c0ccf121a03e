package tap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

func TestWatchEmptyRequest(t *testing.T) {
	t.Parallel()
	p := listen(t, NewServer(new(Registry)), nil)
	stream := p.watch(t.Context(), t, &tappb.WatchRequest{})
	svc := stand(p.reg, respond("hello"))
	for i := range uint64(50) { // no limit
		send(t, svc, get("/"))
		got := []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)}
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, StreamID{0, i}, got[2].ID)
		require.Nil(t, got[0].RequestInit.Headers)
		require.Nil(t, got[2].ResponseEnd.Explanation)
		require.Nil(t, got[2].ResponseEnd.ResponseBody)
	}
}

func TestRegistryWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		svc := stand(reg, respond("hello"))
		req := &tappb.WatchRequest{Match: match.PathPrefix("/a"), Limit: 2, Fields: true}
		var got []Event
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e, err := range reg.Watch(t.Context(), req) {
				assert.NoError(t, err)
				got = append(got, e)
			}
		}()
		synctest.Wait()
		for _, path := range []string{"/a", "/b", "/ab", "/abc"} {
			send(t, svc, get(path))
		}
		<-ended
		require.Equal(t, "qreqre", kinds(got))
		require.Equal(t, []string{"/a", "/ab"}, []string{got[0].RequestInit.Path, got[3].RequestInit.Path})
		require.NotNil(t, got[0].RequestInit.Headers)
		require.Nil(t, reg.active.Load())
	})
}

func TestRegistryWatchEnds(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelCauseFunc, more *bool){
		"break": func(_ context.CancelCauseFunc, more *bool) { *more = false },
		"ctx":   func(cancel context.CancelCauseFunc, _ *bool) { cancel(errors.New("enough of it")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := new(Registry)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				more := true
				var last error
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for _, err := range reg.Watch(ctx, &tappb.WatchRequest{}) {
						if last = err; !more {
							break
						}
					}
				}()
				synctest.Wait()
				leave(cancel, &more)
				send(t, stand(reg, respond("")), get("/"))
				<-ended
				if name == "ctx" {
					require.EqualError(t, last, "tap: watch: enough of it")
				} else {
					require.NoError(t, last)
				}
				require.Nil(t, reg.active.Load())
				require.Empty(t, reg.Describe().Children)
			})
		})
	}
}

func TestSampleSharedByWatchers(t *testing.T) {
	draws := 0
	next := []float64{.05, .5, .95, .1, .0999}
	reg := &Registry{random: func() float64 { draws++; return next[draws-1] }}
	tenth := watchOn(t, reg, &tappb.WatchRequest{Sample: .1})
	most := watchOn(t, reg, &tappb.WatchRequest{Sample: .9, Response: &tappb.ResponseMatch{}})
	all := watchOn(t, reg, &tappb.WatchRequest{})
	every := watchOn(t, reg, &tappb.WatchRequest{Sample: 1})
	none := watchOn(t, reg, &tappb.WatchRequest{Sample: .5, Match: match.Method("PUT")})
	svc := stand(reg, respond("x"))
	for _, path := range []string{"/0", "/1", "/2", "/3", "/4"} {
		send(t, svc, get(path))
	}
	paths := func(w *watcher) (all string) {
		for _, e := range events(w) {
			if e.RequestInit != nil {
				all += e.RequestInit.Path
			}
		}
		return all
	}
	require.Equal(t, 5, draws)
	require.Equal(t, "/0/4", paths(tenth))
	require.Equal(t, "/0/1/3/4", paths(most), "a larger sample includes a smaller one")
	require.Equal(t, "/0/1/2/3/4", paths(all))
	require.Equal(t, "/0/1/2/3/4", paths(every))
	require.Empty(t, paths(none))
	require.EqualValues(t, 2, tenth.seen.Load(), "the limit counts what was drawn")
}

func TestSampleFraction(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Sample: .25, Response: &tappb.ResponseMatch{GrpcStatus: []uint32{99}}})
	n := 0
	for range 4000 {
		if w.admits(&draw{reg: reg}) {
			n++
		}
	}
	require.InDelta(t, 1000, n, 150, "five and a half standard deviations")
}

// At the end of its duration a watch ends without an error, and no longer
// matches requests even if its client does not read.
func TestWatchDuration(t *testing.T) {
	t.Run("over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			svc := stand(reg, respond("x"))
			start := time.Now()
			var got []Event
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for e, err := range reg.Watch(t.Context(), &tappb.WatchRequest{Duration: durationpb.New(30 * time.Second)}) {
					assert.NoError(t, err)
					got = append(got, e)
				}
			}()
			time.Sleep(30*time.Second - 1)
			rsp, err := svc.Call(t.Context(), get("/"))
			require.NoError(t, err)
			<-ended
			require.Equal(t, 30*time.Second, time.Since(start))
			require.Equal(t, "qr", kinds(got))
			require.Nil(t, reg.active.Load())
			require.NoError(t, rsp.Body.Close())
		})
	})
	t.Run("limit first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			start := time.Now()
			go func() {
				synctest.Wait()
				rsp, err := stand(reg, respond("x")).Call(t.Context(), get("/"))
				assert.NoError(t, err)
				assert.NoError(t, rsp.Body.Close())
			}()
			for range reg.Watch(t.Context(), &tappb.WatchRequest{Duration: durationpb.New(time.Hour), Limit: 1}) {
			}
			require.Zero(t, time.Since(start))
		})
	})
	t.Run("not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := NewServer(new(Registry), WithAllowRemote())
			svc := stand(srv.reg, respond("x"))
			stuck := make(chan struct{})
			ended := make(chan error)
			sent := 0
			go func() {
				ended <- gotowerTap{server: srv}.Watch(&tappb.WatchRequest{Duration: durationpb.New(time.Second)}, watchStream{
					ctx: t.Context(), send: func(*tappb.WatchResponse) error { <-stuck; sent++; return nil },
				})
			}()
			synctest.Wait()
			send(t, svc, get("/"))
			time.Sleep(2 * time.Second)
			require.Nil(t, srv.reg.active.Load(), "requests are not looked at")
			require.Len(t, srv.reg.Describe().Children, 1, "but its buffer is still there, and counts")
			close(stuck)
			require.NoError(t, <-ended)
			require.Equal(t, 3, sent)
			require.Empty(t, srv.reg.Describe().Children)
		})
	})
}
