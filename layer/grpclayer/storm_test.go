package grpclayer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// Endpoints come and go during calls of all kinds, half of them canceled. All
// slots are free afterwards, and calls succeed.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		servers := []*server{serve(t, &n, a1), serve(t, &n, a2), serve(t, &n, a3)}
		for _, s := range servers {
			s.delay.Store(int64(time.Millisecond))
		}
		src := newSource(replace(a1, a2, a3))
		var seen layer.Describer
		cc := dial(t, &n, src,
			WithCallLayer(NewStack().Limit(40).Layer()),
			WithEndpointLayer(NewEndpointStack().Limit(8).Layer()),
			WithOnBalancer(func(d layer.Describer) { seen = d }))
		c := pb.NewTestServiceClient(cc)

		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 1))
				for range 30 {
					ctx, cancel := context.WithCancel(t.Context())
					if after := time.Duration(random.IntN(4_000)) * time.Microsecond; after < 2*time.Millisecond {
						go func() {
							time.Sleep(after)
							cancel()
						}()
					}
					for _, run := range shapes {
						_ = run(ctx, c)
					}
					cancel()
				}
			})
		}
		sets := []news{replace(a1), replace(a2, a3), replace(), replace(a1, a2, a3), replace(a3)}
		for i := range 50 {
			src <- sets[i%len(sets)]
			time.Sleep(3 * time.Millisecond)
		}
		src <- replace(a1, a2, a3)
		wg.Wait()
		time.Sleep(time.Second)

		d := seen.Describe()
		require.Len(t, d.Children, 3)
		assertFree(t, seen)
		for _, e := range d.Children {
			assert.Equal(t, "ready", e.State.Get("state"))
		}
		for _, s := range servers {
			assert.Zero(t, s.open.Load())
		}
		for range 20 {
			_, err := call(t.Context(), cc)
			require.NoError(t, err)
		}
	})
}

// The latency of a stream is the time to its first message, not to its end.
// bazelbuild/remote-apis-sdks#589 and linkerd/linkerd#1441: otherwise balancing
// fails.
func TestStreamLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		var seen layer.Describer
		cc := dial(t, &n, newSource(replace(a1)), WithOnBalancer(func(d layer.Describer) { seen = d }))
		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Send(new(outRequest)))
		_, err = s.Recv()
		require.NoError(t, err)
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, seen.Describe().Children[0].State.Get("in_flight"), "it still counts")
		require.NoError(t, s.CloseSend())
		require.NoError(t, readAll(s))
		synctest.Wait()
		state := seen.Describe().Children[0].State
		assert.EqualValues(t, 0, state.Get("in_flight"))
		assert.Less(t, state.Get("ewma"), time.Second)
	})
}

// A pick that gRPC cannot use is not counted.
func TestPickUnused(t *testing.T) {
	c := newConn("web", a1)
	c.set(connected, "", nil)
	p, err := c.Call(t.Context(), pick{})
	require.NoError(t, err)
	var e lastEnd
	p = PickCompletion(t.Context(), p, &e)
	p.done(doneInfo{})
	p.done(doneInfo{})
	require.ErrorIs(t, e.err, layer.ErrNotReady)
	assert.Equal(t, 1, e.times)
}

type lastEnd struct {
	err   error
	times int
}

func (*lastEnd) Data(int) {}

func (s *lastEnd) End(err error) { s.err, s.times = err, s.times+1 }
