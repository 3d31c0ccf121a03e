package stream

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errSilence = errors.New("silence")

// The limits that end a stream. Tests of resolvers and sources have the rest.
func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limits      Limits
		every       time.Duration // something is heard; 0: never
		least, most time.Duration // when it ends; 0: never
		cause       error
	}{
		"none":                {},
		"none, though spoken": {every: time.Hour},
		"silence":             {limits: Limits{Initial: 3 * time.Second}, least: 3 * time.Second, most: 3 * time.Second, cause: errSilence},
		"silence is not idle": {limits: Limits{Idle: time.Minute}},
		"idle":                {limits: Limits{Initial: time.Second, Idle: time.Minute}, every: 2 * time.Minute, least: time.Minute, most: 66 * time.Second, cause: ErrLimit},
		"old":                 {limits: Limits{Idle: time.Minute, Lifetime: time.Hour}, every: time.Second, least: time.Hour, most: 66 * time.Minute, cause: ErrLimit},
		"old and silent":      {limits: Limits{Lifetime: time.Hour}, least: time.Hour, most: 66 * time.Minute, cause: ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, over := time.Now(), time.After(100*time.Hour)
				w := tt.limits.Begin(t.Context(), errSilence)
				defer w.Stop()
				err := w.Wait()
				if tt.every > 0 {
					w.Heard()
					err = w.Wait()
				}
				for err == nil && time.Since(start) < 100*time.Hour {
					var heard <-chan time.Time
					if tt.every > 0 {
						heard = time.After(tt.every)
					}
					select {
					case <-heard:
						w.Pause()
						w.Heard()
						err = w.Wait()
					case <-w.Context().Done():
						err = w.Cause(w.Context().Err())
					case <-over:
					}
				}
				if tt.least == 0 {
					require.NoError(t, err)
					require.NoError(t, w.Context().Err())
					return
				}
				require.ErrorIs(t, err, tt.cause)
				require.Equal(t, tt.cause == ErrLimit, errors.Is(err, ErrEnded))
				assert.GreaterOrEqual(t, time.Since(start), tt.least)
				assert.LessOrEqual(t, time.Since(start), tt.most)
			})
		})
	}
}

// A stream that ends for another reason has its own cause.
func TestCauseWithoutLimit(t *testing.T) {
	w := Limits{}.OrDefault().Begin(t.Context(), errSilence)
	require.NoError(t, w.Wait())
	w.Stop()
	require.ErrorIs(t, w.Context().Err(), w.Cause(w.Context().Err()))
}

func TestLimitsOrDefault(t *testing.T) {
	assert.Equal(t, Limits{3 * time.Second, 5 * time.Minute, time.Hour}, Limits{}.OrDefault())
	assert.Equal(t, Limits{}, Limits{-1, -1, -1}.OrDefault())
	assert.Equal(t, Limits{1, minLife, minLife}, Limits{1, 1, 1}.OrDefault())
	assert.Equal(t, Limits{time.Minute, time.Minute, time.Minute}, Limits{time.Minute, time.Minute, time.Minute}.OrDefault())
}

// The longest time there is does not wrap round.
func TestLimitsUnlimited(t *testing.T) {
	const ever = math.MaxInt64
	w := Limits{Initial: ever, Idle: ever, Lifetime: ever}.Begin(t.Context(), errSilence)
	defer w.Stop()
	require.NoError(t, w.Wait())
	w.Heard()
	require.NoError(t, w.Wait())
}
