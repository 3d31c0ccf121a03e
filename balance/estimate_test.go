package balance

import (
	"math"
	"sync"
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
	return median + (float64(value)-median)*math.Exp(-float64(age)/decay)
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
	require.True(t, e.record(3*time.Millisecond, 12345, 1000, sampleWeight))
	require.InDelta(t, 3*ms, e.read(12345, 1000, 7*ms), 1)
	require.False(t, e.record(5*time.Millisecond, 12346, 1000, sampleWeight))
	require.InEpsilon(t, (3+2*sampleWeight)*ms, e.read(12346, 1000, 7*ms), 0.02)
}

func TestDecayCurve(t *testing.T) {
	for _, decay := range []float64{1e-6, 1, 1000, 1e5, 1e12} {
		f := newDecayCurve(decay)
		latency, left := f.apply(0, 3, 7)
		require.Equal(t, float32(3), latency)
		require.Equal(t, float32(1), left)
		for age := 1.0; age < 5*decay; age *= 1.01 {
			want := math.Exp(-age / decay)
			latency, left = f.apply(float32(age), 3, 7)
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
	read.record(5*time.Millisecond, 5000, d, sampleWeight)
	unread.record(5*time.Millisecond, 5000, d, sampleWeight)
	require.Equal(t, unread.word.Load(), read.word.Load(), "a sample weighs the same, however often was looked")
}

// A sample has a weight of sampleWeight in the logarithm, or more if it is the first one for a while.
func TestEstimateAverage(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.record(1000*time.Millisecond, 0, d, sampleWeight)
	require.InEpsilon(t, 10, e.read(0, d, 0)/ms, 1e-6, "the same tick")
	e.record(1000*time.Millisecond, 1, d, sampleWeight)
	require.InEpsilon(t, 10*math.Pow(100, sampleWeight), e.read(1, d, 0)/ms, 0.06)
	for at := range uint32(150) {
		e.record(1000*time.Millisecond, 2+at, d, sampleWeight)
	}
	require.InEpsilon(t, 1000, e.read(151, d, 0)/ms, 0.02)
	at := 151 + tick(10*time.Second)
	e.record(10*time.Millisecond, at, d, sampleWeight)
	require.InEpsilon(t, 10*math.Pow(100, 1/math.E), e.read(at, d, 0)/ms, 0.06)
}

func TestEstimateLateSample(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.word.Store(pack(float32(50*ms), 1000))
	e.record(50*time.Millisecond, 998, d, sampleWeight) // stored later
	require.InEpsilon(t, 50*ms, e.read(1000, d, 0), 1e-6, "not 52 days later")
	_, age := e.load(1001)
	require.EqualValues(t, 1, age, "its time did not go back")
}

func TestEstimateTicksWrap(t *testing.T) {
	e, d := newEstimate(10*time.Millisecond, 10*time.Second)
	e.word.Store(pack(float32(50*ms), math.MaxUint32-1))
	_, age := e.load(3)
	require.EqualValues(t, 5, age)
	e.record(20*time.Millisecond, 3, d, sampleWeight)
	require.Less(t, e.read(3, d, 0), 50*ms)
	require.Greater(t, e.read(3, d, 0), 46*ms)
}

// An estimate that samples confirm does not age.
func TestEstimateConfirmed(t *testing.T) {
	for _, decay := range []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		e, d := newEstimate(30*time.Millisecond, decay)
		for at := range uint32(100_000) {
			e.record(10*time.Millisecond, at, d, sampleWeight)
			if float64(at) > 20*d {
				require.InEpsilon(t, 10*ms, e.read(at, d, 0), 2e-3, "%v at %d", decay, at)
			}
		}
	}
}

func TestEstimatePositive(t *testing.T) {
	e, d := newEstimate(time.Millisecond, time.Millisecond)
	for at := range uint32(10_000) {
		e.record(0, at*100, d, sampleWeight)
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
			sample := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(rt, "latency"))
			w := math.Max(sampleWeight, 1-math.Exp(-float64(now-at)/d))
			value = fromLog(toLog(value) + w*(toLog(math.Max(float64(sample), 1))-toLog(value)))
			e.record(sample, now, d, sampleWeight)
			at = now
			require.InEpsilon(rt, value, e.read(now, d, 0), 2e-3)
		}
	})
}

// toLog is the logarithm to the base 2, linear between powers of two. fromLog is its inverse.
func toLog(x float64) float64 {
	part, power := math.Frexp(x)
	return 2*part - 1 + float64(power) - 1
}

func fromLog(x float64) float64 {
	whole := math.Floor(x)
	return math.Ldexp(1+x-whole, int(whole))
}

// Concurrent samples leave one of their values.
func TestEstimateConcurrent(t *testing.T) {
	e, d := newEstimate(time.Second, 10*time.Second)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for at := range uint32(1000) {
				e.record(time.Millisecond, at, d, sampleWeight)
			}
		})
	}
	all.Wait()
	require.InEpsilon(t, ms, e.read(1000, d, 0), 0.05)
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
			e.record(time.Millisecond, now, d, sampleWeight)
		}
	})
}

// First samples update the median, in a large group once in a tick.
func TestMedianFirstSamples(t *testing.T) {
	for _, n := range []int{medianSize, medianSize + 1} {
		ns := make([]*endpoint, n)
		for i := range ns {
			ns[i] = unknown()
		}
		g := groupOf(ns...)
		learn := func(i int, now uint32) {
			g.refresh(ns[i], now, ns[i].latency.record(time.Duration(i+1)*time.Millisecond, now, g.params.Load().curve.decay, sampleWeight))
		}
		learn(0, 1)
		require.InDelta(t, 1*ms, g.median.read(), 1)
		learn(2, 1)
		learn(3, 1)
		if n <= medianSize {
			require.InDelta(t, 3*ms, g.median.read(), 1)
			continue
		}
		require.InDelta(t, 1*ms, g.median.read(), 1)
		learn(4, 2)
		require.Greater(t, float64(g.median.read()), 2*ms)
	}
}
