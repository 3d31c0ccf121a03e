package balance

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawRates(rt *rapid.T) []successRate {
	s := make([]successRate, rapid.IntRange(0, 20).Draw(rt, "endpoints"))
	for i := range s {
		all := rapid.Uint64Range(1, 2000).Draw(rt, "all")
		s[i] = successRate{endpoint: unknown(), total: all, good: rapid.Uint64Range(0, all).Draw(rt, "good")}
		s[i].id.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
	}
	return s
}

// asEnvoy is the rule of Envoy and of gRPC's A50.
func asEnvoy(s []successRate) map[*endpoint]bool {
	out := make(map[*endpoint]bool)
	if len(s) < minEndpoints {
		return out
	}
	sum, squares := 0.0, 0.0
	for _, e := range s {
		sum += float64(e.good) / float64(e.total)
	}
	mean := sum / float64(len(s))
	for _, e := range s {
		squares += math.Pow(float64(e.good)/float64(e.total)-mean, 2)
	}
	threshold := mean - stdevFactor*math.Sqrt(squares/float64(len(s)))
	for _, e := range s {
		if float64(e.good)/float64(e.total) < threshold {
			out[e.endpoint] = true
		}
	}
	return out
}

// The outliers are those of Envoy that are below the mean by more than MinDifference,
// the lowest first.
func TestOutliersModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := OutlierDetection{}.orDefault()
		s := drawRates(rt)
		envoy := asEnvoy(s)
		bad, mean := p.outliers(s)
		took := make(map[*endpoint]bool)
		for i, e := range bad {
			took[e.endpoint] = true
			require.True(rt, envoy[e.endpoint])
			require.Greater(rt, mean-e.share(), p.MinDifference)
			require.True(rt, i == 0 || bad[i-1].share() <= e.share())
		}
		for _, e := range s {
			if envoy[e.endpoint] && mean-e.share() > p.MinDifference+1e-9 {
				require.True(rt, took[e.endpoint])
			}
		}
	})
}

func TestOutlierDetectionDefaults(t *testing.T) {
	want := OutlierDetection{
		MinDifference: 0.05, RequestVolume: 100,
		BaseEjectionTime: 30 * time.Second, MaxEjectionTime: 5 * time.Minute, MinReady: 0.5,
	}
	assert.Equal(t, want, OutlierDetection{}.orDefault())
	assert.Equal(t, time.Hour, OutlierDetection{BaseEjectionTime: time.Hour}.orDefault().MaxEjectionTime)
}

func TestOutlierDetectionValidate(t *testing.T) {
	require.NoError(t, OutlierDetection{}.Validate())
	require.NoError(t, OutlierDetection{ConsecutiveFailures: 5, Interval: time.Second, BaseEjectionTime: time.Hour}.orDefault().Validate())
	require.NoError(t, OutlierDetection{}.orDefault().Validate())
	require.NoError(t, OutlierDetection{BaseEjectionTime: time.Hour}.Validate())
	require.NoError(t, OutlierDetection{MinDifference: 1, MinReady: 1}.Validate())
	for field, bad := range map[string][]OutlierDetection{
		"ConsecutiveFailures": {{ConsecutiveFailures: -1}},
		"Interval":            {{Interval: -1}, {Interval: 1}, {Interval: 2 * time.Hour}},
		"MinDifference":       {{MinDifference: -1}, {MinDifference: 1.1}, {MinDifference: math.NaN()}},
		"RequestVolume":       {{RequestVolume: -1}},
		"BaseEjectionTime":    {{BaseEjectionTime: -1}, {BaseEjectionTime: 1}},
		"MaxEjectionTime":     {{MaxEjectionTime: -1}, {MaxEjectionTime: 1}, {MaxEjectionTime: time.Second}, {BaseEjectionTime: time.Hour, MaxEjectionTime: time.Minute}},
		"MinReady":            {{MinReady: -1}, {MinReady: 1.1}, {MinReady: math.NaN()}},
	} {
		for _, e := range bad {
			require.ErrorContains(t, e.Validate(), "balance: outlier detection: "+field+" is ")
		}
	}
}

// The counters do not overflow in the longest interval.
func TestOutlierTally(t *testing.T) {
	e := unknown()
	e.outlier.tally.Store((1<<32-2)<<32 | (1<<32 - 2))
	e.outlier.count(true)
	tally := e.outlier.tally.Load()
	assert.Equal(t, uint64(1<<32-1), tally>>32)
	assert.Equal(t, uint64(1<<32-1), tally&(1<<32-1))
}

// The cost of a good response.
func BenchmarkReport(b *testing.B) {
	for name, e := range map[string]OutlierDetection{
		"none": {}, "consecutive": {ConsecutiveFailures: 5}, "interval": {Interval: time.Second}, "both": {ConsecutiveFailures: 5, Interval: time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			svc := &Balancer[int, int]{}
			svc.policy.Store(&Policy{OutlierDetection: e.orDefault()})
			n := &node[int, int]{endpoint: *unknown()}
			for b.Loop() {
				svc.report(n, success, 0)
			}
		})
	}
}
