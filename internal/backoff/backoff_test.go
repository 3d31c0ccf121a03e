package backoff_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/backoff"
)

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    backoff.Backoff
		want string
	}{
		{"default", backoff.Default(), ""},
		{"constant", backoff.Backoff{Min: time.Second, Max: time.Second}, ""},
		{"zero", backoff.Backoff{}, "min 0s must be more than 0"},
		{"negative", backoff.Backoff{Min: -1, Max: 1}, "min -1ns must be more than 0"},
		{"max below min", backoff.Backoff{Min: 2, Max: 1}, "max 1ns must be at least min 2ns"},
		{"jitter below", backoff.Backoff{Min: 1, Max: 1, Jitter: -0.1}, "jitter -0.1 must be from 0 to 100"},
		{"jitter above", backoff.Backoff{Min: 1, Max: 1, Jitter: 100.5}, "jitter 100.5 must be from 0 to 100"},
		{"jitter not a number", backoff.Backoff{Min: 1, Max: 1, Jitter: math.NaN()}, "jitter NaN must be from 0 to 100"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.b.Validate()
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestOrDefault(t *testing.T) {
	for _, tt := range []struct {
		name    string
		b, want backoff.Backoff
	}{
		{"zero is the default", backoff.Backoff{}, backoff.Default()},
		{"valid stays", backoff.Backoff{Min: 1, Max: 2, Jitter: 3}, backoff.Backoff{Min: 1, Max: 2, Jitter: 3}},
		{"only max", backoff.Backoff{Max: 10 * time.Second}, backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}},
		{"only a small max", backoff.Backoff{Max: time.Millisecond}, backoff.Backoff{Min: time.Millisecond, Max: time.Millisecond}},
		{"only min", backoff.Backoff{Min: time.Second}, backoff.Backoff{Min: time.Second, Max: time.Minute}},
		{"only a large min", backoff.Backoff{Min: time.Hour}, backoff.Backoff{Min: time.Hour, Max: time.Hour}},
		{"max below min", backoff.Backoff{Min: 5, Max: 4}, backoff.Backoff{Min: 5, Max: 5}},
		{"only jitter", backoff.Backoff{Jitter: 0.5}, backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Minute, Jitter: 0.5}},
		{"jitter not a number", backoff.Backoff{Min: 1, Max: 1, Jitter: math.NaN()}, backoff.Backoff{Min: 1, Max: 1}},
		{"jitter too much", backoff.Backoff{Min: 1, Max: 1, Jitter: 101}, backoff.Backoff{Min: 1, Max: 1, Jitter: 100}},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, tt.b.OrDefault()) })
	}
}

func TestDelayDoublesUpToMax(t *testing.T) {
	b := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	var got []time.Duration
	for n := -1; n < 6; n++ {
		got = append(got, b.Delay(n))
	}
	ms := time.Millisecond
	assert.Equal(t, []time.Duration{100 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second}, got)
}

func TestDelayJitterSpreads(t *testing.T) {
	b := backoff.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5}
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := b.Delay(0)
		low, high = min(low, d), max(high, d)
	}
	assert.GreaterOrEqual(t, low, time.Second)
	assert.Less(t, low, 1050*time.Millisecond, "1000 draws and none near the lower bound")
	assert.LessOrEqual(t, high, 1500*time.Millisecond)
	assert.Greater(t, high, 1450*time.Millisecond, "1000 draws and none near the upper bound")
}

// A delay below 0 would be a busy loop: nothing may overflow.
func TestDelayNeverOverflows(t *testing.T) {
	const most = time.Duration(math.MaxInt64)
	for _, b := range []backoff.Backoff{
		{Min: most, Max: most, Jitter: 100},
		{Min: 1, Max: most, Jitter: 100},
		{Min: most / 2, Max: most, Jitter: 1},
		{Min: most - 1, Max: most, Jitter: 0.1},
	} {
		for n := range 70 {
			d := b.Delay(n)
			require.GreaterOrEqual(t, d, b.Min, "%+v after attempt %d", b, n)
		}
	}
}

func TestDelayBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := backoff.Backoff{
			Min:    time.Duration(rapid.Int64().Draw(t, "min")),
			Max:    time.Duration(rapid.Int64().Draw(t, "max")),
			Jitter: rapid.Float64().Draw(t, "jitter"),
		}.OrDefault()
		if err := b.Validate(); err != nil {
			t.Fatalf("OrDefault made %+v: %v", b, err)
		}
		n := rapid.Int().Draw(t, "n")
		d, next := b.Delay(n), backoff.Backoff{Min: b.Min, Max: b.Max}.Delay(n)
		if d < next || d > b.Max {
			t.Fatalf("%+v after attempt %d: %v is not from %v to max", b, n, d, next)
		}
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, backoff.Sleep(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Since(start))

		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(gone) })
		require.ErrorIs(t, backoff.Sleep(ctx, time.Hour), gone)
		assert.Equal(t, time.Hour+time.Minute, time.Since(start), "returns as soon as ctx ends")
	})
}
