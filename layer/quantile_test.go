package layer

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// within returns the largest error of the estimate for d.
func within(d time.Duration) time.Duration { return max(d/20, 1100*time.Nanosecond) }

func TestQuantileError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		est := &quantile{q: rapid.Float64Range(0.01, 0.99).Draw(t, "q"), minSamples: 1, period: time.Minute}
		samples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Uint64Range(0, 1<<37).Draw(t, "d") >> rapid.IntRange(0, 32).Draw(t, "shift"))
		}), 1, 200).Draw(t, "samples")
		for _, d := range samples {
			est.record(time.Second, d)
		}
		slices.Sort(samples)
		exact := samples[int(math.Ceil(est.q*float64(len(samples))))-1]
		got, ok := est.value(2 * time.Second)
		require.True(t, ok)
		require.InDelta(t, exact, got, float64(within(exact)))
	})
}

func TestQuantileMinSamples(t *testing.T) {
	q := &quantile{q: 0.5, minSamples: 10, period: time.Minute}
	for i := range 9 {
		q.record(time.Duration(i), time.Second)
		_, ok := q.value(time.Duration(i))
		require.False(t, ok)
	}
	q.record(10, time.Second)
	d, ok := q.value(10)
	require.True(t, ok, "at once, not when the next estimate is due")
	require.InDelta(t, time.Second, d, float64(within(time.Second)))
}

func TestQuantileMaxAge(t *testing.T) {
	q := &quantile{q: 0.5, minSamples: 1, period: time.Minute}
	q.record(0, time.Second)
	for range 10 {
		q.record(time.Second-1, time.Minute)
	}
	d, _ := q.value(quantileFresh - 1)
	require.InDelta(t, time.Second, d, float64(within(time.Second)))
	d, _ = q.value(quantileFresh)
	require.InDelta(t, time.Minute, d, float64(within(time.Minute)))
}

func TestQuantileExpiry(t *testing.T) {
	const period = 30 * time.Second
	q := &quantile{q: 0.5, minSamples: 2, period: period}
	q.record(0, time.Second)
	q.record(0, time.Second)
	_, ok := q.value(period)
	require.True(t, ok, "in the older half now")
	q.record(period, time.Minute)
	_, ok = q.value(2 * period)
	require.False(t, ok, "the older half is gone, and one sample is not enough")
	q.record(2*period, time.Minute)
	d, ok := q.value(2*period + time.Second)
	require.True(t, ok)
	require.InDelta(t, time.Minute, d, float64(within(time.Minute)))
	_, ok = q.value(4*period + time.Second)
	require.False(t, ok, "no sample in two periods")
	q.record(4*period+time.Second, time.Hour)
	_, ok = q.value(4*period + 2*time.Second)
	require.False(t, ok)
}

// The window has the samples of at least the last period, and of at most the last two.
func TestQuantileWindowModel(t *testing.T) {
	const period = 10 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		q := &quantile{q: 0.5, minSamples: 1, period: period}
		type sample struct{ at, d time.Duration }
		var all []sample
		now := time.Duration(0)
		t.Repeat(map[string]func(*rapid.T){
			"record": func(t *rapid.T) {
				d := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "d"))
				q.record(now, d)
				all = append(all, sample{now, d})
			},
			"wait": func(t *rapid.T) {
				now += time.Duration(rapid.Int64Range(int64(quantileFresh), int64(period)).Draw(t, "wait"))
			},
			"": func(t *rapid.T) {
				now += quantileFresh // so that the estimate is updated
				got, ok := q.value(now)
				lowest, highest := time.Duration(math.MaxInt64), time.Duration(0)
				surely := false
				for _, s := range all {
					if now-s.at > 2*period+quantileFresh {
						continue
					}
					surely = surely || now-s.at < period
					lowest, highest = min(lowest, s.d), max(highest, s.d)
				}
				if surely {
					require.True(t, ok)
				}
				if ok {
					require.GreaterOrEqual(t, got, lowest-within(lowest))
					require.LessOrEqual(t, got, highest+within(highest))
				}
			},
		})
	})
}

func TestQuantileConcurrent(t *testing.T) {
	q := &quantile{q: 0.9, minSamples: 1, period: time.Hour}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 5000 {
				now := time.Duration(i) * time.Millisecond
				q.record(now, time.Duration(1+i%100)*time.Millisecond)
				q.value(now)
			}
		})
	}
	wg.Wait()
	d, ok := q.value(time.Minute)
	assert.True(t, ok)
	assert.InDelta(t, 90*time.Millisecond, d, float64(within(90*time.Millisecond)), "no sample was lost")
	require.Zero(t, testing.AllocsPerRun(1000, func() { q.record(time.Minute, time.Second); q.value(time.Minute) }))
}

func BenchmarkQuantile(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	samples := make([]time.Duration, 1024)
	for i := range samples {
		samples[i] = time.Duration(rng.ExpFloat64() * float64(10*time.Millisecond))
	}
	q := &quantile{q: 0.95, minSamples: 1, period: hedgePeriod}
	b.Run("record and read", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			now := time.Duration(i) * time.Microsecond
			q.value(now)
			q.record(now, samples[i&1023])
		}
	})
	b.Run("make the estimate", func(b *testing.B) {
		for b.Loop() {
			q.update(0)
		}
	})
}
