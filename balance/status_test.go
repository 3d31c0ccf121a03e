package balance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type nothing struct{}

func (nothing) Ready(context.Context) error            { return nil }
func (nothing) Call(context.Context, int) (int, error) { return 0, nil }

// The parts of the word are independent.
func TestStatusModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s status
		var state, samples uint32
		var streams int32
		var bad, fails, warm bool
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
			"fail":    func(*rapid.T) { s.fail(); fails = true },
			"recover": func(*rapid.T) { s.recover(); fails = false },
			"warm":    func(*rapid.T) { s.warmUp(); warm = true },
			"": func(rt *rapid.T) {
				require.Equal(rt, state, s.state())
				require.Equal(rt, samples, s.samples())
				require.Equal(rt, streams, s.streams())
				require.Equal(rt, bad, s.marked())
				require.Equal(rt, fails, s.fails())
				require.Equal(rt, warm, s.warm())
			},
		})
	})
}

// After concurrent responses an endpoint is marked exactly if its record is not clean.
func TestStatusMark(t *testing.T) {
	p := OutlierDetection{ConsecutiveFailures: 1 << 20}.orDefault()
	respond := func(e *endpoint, bad bool, expected time.Duration) {
		e.setFailed(bad)
		p.record(e, result{failed: bad})
		if bad {
			e.penalize(expected)
		} else if e.isPenalized() {
			e.clearPenalty(1, expected)
		}
		e.unmarkIfClean()
	}
	for range 200 {
		e := unknown()
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range 20 {
					respond(e, i%2 == 0, 1000)
				}
			})
		}
		all.Wait()
		require.True(t, e.clean() || e.status.marked())
		respond(e, false, 1)
		require.True(t, e.clean())
		require.False(t, e.status.marked())
		require.False(t, e.status.fails(), "its last response was good")
	}
}
