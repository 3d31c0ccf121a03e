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
func asEnvoy(p OutlierDetection, s []standing) map[*endpoint]bool {
	out := make(map[*endpoint]bool)
	if len(s) < p.MinEndpoints {
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
	threshold := mean - p.StdevFactor*math.Sqrt(squares/float64(len(s)))
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
		p := OutlierDetection{MinEndpoints: rapid.IntRange(1, 8).Draw(rt, "needed"), StdevFactor: rapid.Float64Range(0.1, 3).Draw(rt, "deviations")}.orDefault()
		s := drawStandings(rt)
		envoy := asEnvoy(p, s)
		bad, mean := p.outliers(s)
		took := make(map[*endpoint]bool)
		for i, e := range bad {
			took[e.endpoint] = true
			require.True(rt, envoy[e.endpoint])
			require.Greater(rt, mean-e.share(), p.MinDifference)
			require.True(rt, i == 0 || bad[i-1].share() <= e.share())
		}
		for _, e := range s {
			matters := mean-e.share() > p.MinDifference+1e-9 && mean-e.share() > chance(mean, e.all)+1e-9
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
			p := OutlierDetection{}.orDefault()
			var ours, envoys int
			for range intervals {
				s := make([]standing, 20)
				for i := range s {
					s[i] = standing{endpoint: unknown(), all: uint64(p.RequestVolume)}
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
	want := OutlierDetection{
		StdevFactor: 1.9, MinDifference: 0.05, RequestVolume: 100, MinEndpoints: 5,
		BaseEjectionTime: 30 * time.Second, MaxEjectionTime: 5 * time.Minute, MinReady: 0.5,
	}
	assert.Equal(t, want, OutlierDetection{}.orDefault())
	assert.Equal(t, time.Hour, OutlierDetection{BaseEjectionTime: time.Hour}.orDefault().MaxEjectionTime)
}

func TestEjectionValidate(t *testing.T) {
	require.NoError(t, OutlierDetection{}.Validate())
	require.NoError(t, OutlierDetection{ConsecutiveFailures: 5, Interval: time.Second, BaseEjectionTime: time.Hour}.orDefault().Validate())
	require.NoError(t, OutlierDetection{}.orDefault().Validate())
	require.NoError(t, OutlierDetection{BaseEjectionTime: time.Hour}.Validate())
	require.NoError(t, OutlierDetection{StdevFactor: math.Inf(1), MinDifference: 1, MinReady: 1}.Validate())
	for field, bad := range map[string][]OutlierDetection{
		"ConsecutiveFailures": {{ConsecutiveFailures: -1}},
		"Interval":            {{Interval: -1}, {Interval: 1}, {Interval: 2 * time.Hour}},
		"StdevFactor":         {{StdevFactor: -1}, {StdevFactor: math.NaN()}},
		"MinDifference":       {{MinDifference: -1}, {MinDifference: 1.1}, {MinDifference: math.NaN()}},
		"RequestVolume":       {{RequestVolume: -1}},
		"MinEndpoints":        {{MinEndpoints: -1}},
		"BaseEjectionTime":    {{BaseEjectionTime: -1}, {BaseEjectionTime: 1}},
		"MaxEjectionTime":     {{MaxEjectionTime: -1}, {MaxEjectionTime: 1}, {MaxEjectionTime: time.Second}, {BaseEjectionTime: time.Hour, MaxEjectionTime: time.Minute}},
		"MinReady":            {{MinReady: -1}, {MinReady: 1.1}, {MinReady: math.NaN()}},
	} {
		for _, e := range bad {
			require.ErrorContains(t, e.Validate(), "balance: ejection: "+field+" is ")
		}
	}
}

// The counters of an interval hold what the longest one may bring.
func TestTallyHoldsAnHour(t *testing.T) {
	j := newJury(OutlierDetection{Interval: time.Hour}.orDefault())
	e := unknown()
	e.conduct.tally.Store((1<<32-2)<<32 | (1<<32 - 2))
	j.hear(e, verdict{failed: true})
	tally := e.conduct.tally.Load()
	assert.EqualValues(t, 1<<32-1, tally>>32)
	assert.EqualValues(t, 1<<32-1, tally&(1<<32-1))
}

// What a response that went well costs.
func BenchmarkNote(b *testing.B) {
	for name, e := range map[string]OutlierDetection{
		"none": {}, "consecutive": {ConsecutiveFailures: 5}, "interval": {Interval: time.Second}, "both": {ConsecutiveFailures: 5, Interval: time.Second},
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
