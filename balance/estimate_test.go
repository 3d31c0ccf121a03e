package balance

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const ms = float64(time.Millisecond)

// read returns the exact value of the formula; see group.expected.
func (e *estimate) read(now uint32, decay, median float64) float64 {
	value, age := e.load(now)
	if value == 0 {
		return median
	}
	return median + (float64(value)-median)*fade(age, decay)
}

func newEstimate(value, decay time.Duration) (e *estimate, d float64) {
	e = &estimate{}
	e.word.Store(pack(float32(value), 0))
	return e, decayTicks(decay)
}

// The vectors of tower's load::peak_ewma tests, with a median of 0.
func TestEstimateTowerVectors(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, time.Second)
	require.InDelta(t, 10*ms, e.read(0, d, 0), 1)
	after := func(at time.Duration) float64 { return e.read(tick(at), d, 0) / ms }
	require.Greater(t, after(100*time.Millisecond), 9.0)
	require.Less(t, after(100*time.Millisecond), 10.0)
	require.Greater(t, after(200*time.Millisecond), 8.0)
	require.Less(t, after(200*time.Millisecond), 9.0)
	require.InDelta(t, 10/math.E, after(time.Second), 0.01)
}

// An estimate ages towards the median, from above and from below.
func TestEstimateAges(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, time.Second)
	for median, want := range map[float64]float64{4 * ms: 4 + 6/math.E, 40 * ms: 40 - 30/math.E, 10 * ms: 10} {
		require.InDelta(t, want, e.read(tick(time.Second), d, median)/ms, 0.01)
		require.InEpsilon(t, median, e.read(tick(time.Minute), d, median), 1e-6)
	}
}

func TestEstimateWithoutSample(t *testing.T) {
	var e estimate
	require.InDelta(t, 7*ms, e.read(12345, 1000, 7*ms), 0)
	require.True(t, e.record(3*time.Millisecond, 12345, 1000, 0))
	require.InDelta(t, 3*ms, e.read(12345, 1000, 7*ms), 1)
	require.False(t, e.record(5*time.Millisecond, 12346, 1000, 0))
	require.InDelta(t, 5*ms, e.read(12346, 1000, 7*ms), 1)
}

// One peak moves an estimate below the floor by little. Continued slowness moves it
// above.
func TestEstimateAveragesPeaksBelowFloor(t *testing.T) {
	const us = time.Microsecond
	e, d := newEstimate(200*us, 10*time.Second)
	e.record(50*time.Millisecond, 1, d, minLatency)
	require.InDelta(t, 0.2, e.read(1, d, 0)/ms, 0.01, "one hiccup")
	for now := uint32(1); now < 4000; now += 2 {
		e.record(20*time.Millisecond, now, d, minLatency)
	}
	require.InDelta(t, 20, e.read(4000, d, 0)/ms, 0.1, "after four seconds")
}

func TestExp2Neg(t *testing.T) {
	require.Equal(t, float32(1), exp2Neg(0))
	for x := float32(0); x < 130; x += 0.0137 {
		want := math.Exp2(-float64(x))
		require.InDelta(t, want, exp2Neg(x), 2e-4*want+1e-36)
	}
	require.Zero(t, exp2Neg(math.MaxFloat32))
}

func TestDecayCurve(t *testing.T) {
	for _, decay := range []float64{1e-6, 1, 1000, 1e5, 1e12} {
		f := newDecayCurve(decay)
		latency, left := f.after(0, 3, 7)
		require.Equal(t, float32(3), latency)
		require.Equal(t, float32(1), left)
		for age := 1.0; age < 5*decay; age *= 1.01 {
			want := math.Exp(-age / decay)
			latency, left = f.after(float32(age), 3, 7)
			require.InDelta(t, want, left, 3e-4, "at %v of %v", age, decay)
			require.InDelta(t, 3*want+7*(1-want), latency, 2e-3)
		}
	}
}

func TestEstimateReadIsPure(t *testing.T) {
	read, d := newEstimate(30*time.Millisecond, 10*time.Second)
	unread, _ := newEstimate(30*time.Millisecond, 10*time.Second)
	before := read.word.Load()
	for at := range uint32(100_000) {
		read.read(at, d, 0)
	}
	require.Equal(t, before, read.word.Load())
	read.record(5*time.Millisecond, 5000, d, 0)
	unread.record(5*time.Millisecond, 5000, d, 0)
	require.Equal(t, unread.word.Load(), read.word.Load(), "a sample weighs the same, however often was looked")
}

func TestEstimatePeak(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.record(80*time.Millisecond, 0, d, 0)
	require.InEpsilon(t, 80*ms, e.read(0, d, 0), 1e-6, "in the same tick too")
	e.record(90*time.Millisecond, 7, d, 0)
	require.InEpsilon(t, 90*ms, e.read(7, d, 0), 1e-6)
}

func TestEstimateAverage(t *testing.T) {
	e, d := newEstimate(100*time.Millisecond, 10*time.Second)
	at := tick(10 * time.Second)
	e.record(10*time.Millisecond, at, d, 0)
	w := math.Exp(-float64(at) / d)
	require.InEpsilon(t, 100*ms*w+10*ms*(1-w), e.read(at, d, 0), 1e-6)
	require.InDelta(t, 43, e.read(at, d, 0)/ms, 0.2)
}

// A lower sample within the same tick has no effect.
func TestEstimateWithinOneTick(t *testing.T) {
	e, d := newEstimate(100*time.Millisecond, 10*time.Second)
	e.record(10*time.Millisecond, 5, d, 0)
	once := e.word.Load()
	for range 1000 {
		e.record(10*time.Millisecond, 5, d, 0)
	}
	require.Equal(t, once, e.word.Load())
	e.record(200*time.Millisecond, 5, d, 0)
	require.InEpsilon(t, 200*ms, e.read(5, d, 0), 1e-6, "a worse one is")
}

// With a decay of a day one tick moves the value by less than a float32 shows. Many ticks
// still count.
func TestEstimateLongDecay(t *testing.T) {
	e, d := newEstimate(100*time.Millisecond, 24*time.Hour)
	const ticks = 4_000_000 // a good hour
	for at := range uint32(ticks) {
		e.record(50*time.Millisecond, at, d, 0)
	}
	w := math.Exp(-ticks / d)
	require.InEpsilon(t, 100*ms*w+50*ms*(1-w), e.read(ticks, d, 0), 0.005)
	require.Less(t, e.read(ticks, d, 0), 98*ms)
}

func TestEstimateLateSample(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.record(50*time.Millisecond, 1000, d, 0)
	before := e.word.Load()
	e.record(time.Millisecond, 998, d, 0) // began later or not: stored later
	require.Equal(t, before, e.word.Load(), "not 52 days later")
	e.record(60*time.Millisecond, 998, d, 0)
	require.InEpsilon(t, 60*ms, e.read(1000, d, 0), 1e-6, "a peak counts")
	require.InEpsilon(t, 60*ms, e.read(998, d, 0), 1e-6)
	_, age := e.load(1001)
	require.EqualValues(t, 1, age, "its time did not go back")
}

func TestEstimateTicksWrap(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.word.Store(pack(float32(50*ms), math.MaxUint32-1))
	_, age := e.load(3)
	require.EqualValues(t, 5, age)
	e.record(20*time.Millisecond, 3, d, 0)
	require.Less(t, e.read(3, d, 0), 50*ms)
	require.Greater(t, e.read(3, d, 0), 49*ms)
}

// An estimate that samples confirm does not age.
func TestEstimateConfirmed(t *testing.T) {
	for _, decay := range []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		e, d := newEstimate(30*time.Millisecond, decay)
		for at := range uint32(100_000) {
			e.record(10*time.Millisecond, at, d, 0)
			if float64(at) > 20*d {
				require.InEpsilon(t, 10*ms, e.read(at, d, 0), 2e-3, "%v at %d", decay, at)
			}
		}
	}
}

func TestEstimatePositive(t *testing.T) {
	e, d := newEstimate(time.Millisecond, time.Millisecond)
	for at := range uint32(10_000) {
		e.record(0, at*100, d, 0)
		require.Positive(t, e.read(at*100, d, 0))
		value, _ := e.load(at * 100)
		require.GreaterOrEqual(t, value, float32(1))
	}
}

// After random samples the word has the value of the formula.
func TestEstimateModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		decay := time.Duration(rapid.IntRange(1, 60_000).Draw(rt, "decay")) * time.Millisecond
		e, d := newEstimate(30*time.Millisecond, decay)
		value, at := 30*ms, uint32(0)
		for range rapid.IntRange(1, 50).Draw(rt, "samples") {
			now := at + uint32(rapid.IntRange(1, 30_000).Draw(rt, "ticks"))
			sample := time.Duration(rapid.IntRange(0, int(time.Minute)).Draw(rt, "latency"))
			if s := math.Max(float64(sample), 1); s > value {
				value = s
			} else {
				w := math.Exp(-float64(now-at) / d)
				value = value*w + s*(1-w)
			}
			e.record(sample, now, d, 0)
			at = now
			require.InEpsilon(rt, value, e.read(now, d, 0), 2e-3)
		}
	})
}

// Within a tick the value never decreases, so that no goroutine finds it below its own
// sample.
func TestEstimateConcurrentPeaks(t *testing.T) {
	const samples = 300_000
	e, d := newEstimate(time.Millisecond, 10*time.Second)
	var decayed atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range samples {
				s := time.Duration(4*j+i+1) * time.Millisecond
				e.record(s, 0, d, 0)
				if e.read(0, d, 0) < float64(float32(s)) {
					decayed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, decayed.Load())
	require.InEpsilon(t, 4*samples*ms, e.read(0, d, 0), 1e-6)
}

func BenchmarkEstimate(b *testing.B) {
	e, d := newEstimate(30*time.Millisecond, 10*time.Second)
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		var sum float64
		for b.Loop() {
			sum += e.read(1000, d, 0)
		}
		_ = sum
	})
	b.Run("record", func(b *testing.B) {
		b.ReportAllocs()
		var now uint32
		for b.Loop() {
			now++
			e.record(time.Millisecond, now, d, 0)
		}
	})
}
