package balance

import (
	"context"
	"math/bits"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/discover"
)

// The fields of an endpoint that a request touches are one cache line.
func TestNodeSize(t *testing.T) {
	const line = 64
	if bits.UintSize < 64 {
		t.Skip("it is smaller where pointers are")
	}
	require.EqualValues(t, line, reflect.TypeFor[node[int, int]]().Size())
	require.EqualValues(t, line, reflect.TypeFor[node[string, []byte]]().Size())
	b := &Balancer[int, int]{group: groupOf()}
	for range 1000 {
		n := b.newNode(&discover.Endpoint[int, int]{Service: nothing{}})
		require.Zero(t, reflect.ValueOf(n).Pointer()%line)
	}
}

type nothing struct{}

func (nothing) Ready(context.Context) error            { return nil }
func (nothing) Call(context.Context, int) (int, error) { return 0, nil }

// The parts of the word are independent.
func TestStatusModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s status
		var state, samples uint32
		var streams int32
		var bad, suspect, warm bool
		rt.Repeat(map[string]func(*rapid.T){
			"state": func(rt *rapid.T) {
				next := rapid.Uint32Range(ready, removed).Draw(rt, "state")
				require.Equal(rt, state, s.setState(next))
				state = next
			},
			"samples": func(rt *rapid.T) {
				samples = rapid.SampledFrom([]uint32{0, initialSet}).Draw(rt, "samples")
				s.setSamples(samples)
			},
			"prove": func(*rapid.T) {
				s.addSample()
				if samples++; samples == trustedSamples || samples > allSamples {
					samples = allSamples
				}
			},
			"stream": func(rt *rapid.T) {
				n := rapid.Int32Range(-1, 1).Draw(rt, "more")
				s.stream(n)
				streams += n
			},
			"mark":    func(*rapid.T) { s.mark(); bad = true },
			"unmark":  func(*rapid.T) { s.unmark(); bad = false },
			"suspect": func(*rapid.T) { s.suspect(); suspect = true },
			"trust":   func(*rapid.T) { s.trust(); suspect = false },
			"warm":    func(*rapid.T) { s.warmUp(); warm = true },
			"": func(rt *rapid.T) {
				require.Equal(rt, state, s.state())
				require.Equal(rt, samples, s.samples())
				require.Equal(rt, streams, s.streams())
				require.Equal(rt, bad, s.word.Load()&badRecord != 0)
				require.Equal(rt, suspect, s.isSuspected())
				require.Equal(rt, warm, s.warm())
			},
		})
	})
}

// After concurrent responses an endpoint is marked exactly if its record is not clean, and it is
// suspected if it is doubted.
func TestStatusMark(t *testing.T) {
	for range 200 {
		svc := New(t.Context(), Config{Target: "web"}, func(func(discover.Change[int, int]) bool) {},
			WithPolicy[int](Policy{OutlierDetection: OutlierDetection{ConsecutiveFailures: 1 << 20}}))
		n := &node[int, int]{endpoint: *unknown()}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range 20 {
					svc.report(n, []result{refused, success}[i%2], time.Since(svc.start))
				}
			})
		}
		all.Wait()
		require.True(t, n.clean() || n.status.word.Load()&badRecord != 0)
		require.True(t, n.level.Load() == 0 || n.status.isSuspected())
		svc.report(n, success, time.Since(svc.start))
		require.True(t, n.clean())
		require.Zero(t, n.status.word.Load()&badRecord)
		require.Zero(t, n.level.Load(), "its last response was good")
	}
}
