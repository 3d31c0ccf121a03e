package balance

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawStandings(rt *rapid.T) []standing {
	s := make([]standing, rapid.IntRange(0, 20).Draw(rt, "endpoints"))
	for i := range s {
		all := rapid.Uint64Range(1, 2000).Draw(rt, "all")
		s[i] = standing{endpoint: unknown(), all: all, good: rapid.Uint64Range(0, all).Draw(rt, "good")}
		s[i].id.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
	}
	return s
}

// asEnvoy is the rule of Envoy and of gRPC's A50, word by word.
func asEnvoy(p Ejection, s []standing) map[*endpoint]bool {
	out := make(map[*endpoint]bool)
	if len(s) < p.Endpoints {
		return out
	}
	sum, squares := 0.0, 0.0
	for _, e := range s {
		sum += float64(e.good) / float64(e.all)
	}
	mean := sum / float64(len(s))
	for _, e := range s {
		squares += math.Pow(float64(e.good)/float64(e.all)-mean, 2)
	}
	threshold := mean - p.Deviations*math.Sqrt(squares/float64(len(s)))
	for _, e := range s {
		if float64(e.good)/float64(e.all) < threshold {
			out[e.endpoint] = true
		}
	}
	return out
}

// It takes out only what Envoy would, and of that whoever is far enough below
// the mean for it to matter and not to be chance; the worst come first.
func TestOutliersAreThoseOfEnvoyThatMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := Ejection{Endpoints: rapid.IntRange(1, 8).Draw(rt, "needed"), Deviations: rapid.Float64Range(0.1, 3).Draw(rt, "deviations")}.orDefault()
		s := drawStandings(rt)
		envoy := asEnvoy(p, s)
		bad, mean := p.outliers(s)
		took := make(map[*endpoint]bool)
		for i, e := range bad {
			took[e.endpoint] = true
			require.True(rt, envoy[e.endpoint])
			require.Greater(rt, mean-e.share(), p.Difference)
			require.True(rt, i == 0 || bad[i-1].share() <= e.share())
		}
		for _, e := range s {
			matters := mean-e.share() > p.Difference+1e-9 && mean-e.share() > chance(mean, e.all)+1e-9
			if envoy[e.endpoint] && matters {
				require.True(rt, took[e.endpoint])
			}
		}
	})
}

// Where all endpoints are equal, whoever is ejected is so by chance.
func TestChanceEjectsNobody(t *testing.T) {
	const intervals = 500
	for name, good := range map[string]float64{"999 of 1000": 0.999, "99 of 100": 0.99, "9 of 10": 0.9, "half": 0.5} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			p := Ejection{}.orDefault()
			var ours, envoys int
			for range intervals {
				s := make([]standing, 20)
				for i := range s {
					s[i] = standing{endpoint: unknown(), all: uint64(p.Requests)}
					for range s[i].all {
						if random.Float64() < good {
							s[i].good++
						}
					}
				}
				envoys += len(asEnvoy(p, s))
				bad, _ := p.outliers(s)
				ours += len(bad)
			}
			t.Logf("in %d intervals, of 20 equal endpoints: %d ejected; by Envoy's rule %d", intervals, ours, envoys)
			assert.Zero(t, ours)
			assert.Greater(t, envoys, intervals/4)
		})
	}
}

func TestEjectionDefaults(t *testing.T) {
	want := Ejection{
		Deviations: 1.9, Difference: 0.05, Requests: 100, Endpoints: 5,
		Time: 30 * time.Second, MaxTime: 5 * time.Minute, Floor: 0.5,
	}
	assert.Equal(t, want, Ejection{}.orDefault())
	assert.Equal(t, time.Hour, Ejection{Time: time.Hour}.orDefault().MaxTime)
}

func TestEjectionValidate(t *testing.T) {
	require.NoError(t, Ejection{}.Validate())
	require.NoError(t, Ejection{Consecutive: 5, Interval: time.Second, Time: time.Hour}.orDefault().Validate())
	require.NoError(t, Ejection{}.orDefault().Validate())
	require.NoError(t, Ejection{Time: time.Hour}.Validate())
	require.NoError(t, Ejection{Deviations: math.Inf(1), Difference: 1, Floor: 1}.Validate())
	for field, bad := range map[string][]Ejection{
		"Consecutive": {{Consecutive: -1}},
		"Interval":    {{Interval: -1}, {Interval: 1}, {Interval: 2 * time.Hour}},
		"Deviations":  {{Deviations: -1}, {Deviations: math.NaN()}},
		"Difference":  {{Difference: -1}, {Difference: 1.1}, {Difference: math.NaN()}},
		"Requests":    {{Requests: -1}},
		"Endpoints":   {{Endpoints: -1}},
		"Time":        {{Time: -1}, {Time: 1}},
		"MaxTime":     {{MaxTime: -1}, {MaxTime: 1}, {MaxTime: time.Second}, {Time: time.Hour, MaxTime: time.Minute}},
		"Floor":       {{Floor: -1}, {Floor: 1.1}, {Floor: math.NaN()}},
	} {
		for _, e := range bad {
			require.ErrorContains(t, e.Validate(), "balance: ejection: "+field+" is ")
		}
	}
}

// The counters of an interval hold what the longest one may bring.
func TestTallyHoldsAnHour(t *testing.T) {
	j := newJury(Ejection{Interval: time.Hour}.orDefault())
	e := unknown()
	e.conduct.tally.Store((1<<32-2)<<32 | (1<<32 - 2))
	j.hear(e, verdict{failed: true})
	tally := e.conduct.tally.Load()
	assert.EqualValues(t, 1<<32-1, tally>>32)
	assert.EqualValues(t, 1<<32-1, tally&(1<<32-1))
}

// What a response that went well costs.
func BenchmarkNote(b *testing.B) {
	for name, e := range map[string]Ejection{
		"none": {}, "consecutive": {Consecutive: 5}, "interval": {Interval: time.Second}, "both": {Consecutive: 5, Interval: time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			svc := &Balancer[int, int]{jury: newJury(e.orDefault())}
			n := &node[int, int]{endpoint: *unknown()}
			for b.Loop() {
				svc.note(n, verdict{})
			}
		})
	}
}
