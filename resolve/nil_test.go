package resolve_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// Programming errors fail in the constructor.
func TestConstructorsPanic(t *testing.T) {
	well := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(func(resolve.Update, error) bool) {}
	})
	for name, construct := range map[string]func(){
		"Fallback, first": func() { resolve.Fallback(nil, well) },
		"Fallback":        func() { resolve.Fallback(well, nil) },
		"ServeStale":      func() { resolve.ServeStale(nil, resolve.StalePolicy{}) },
		"Merge":           func() { resolve.Merge(well, nil) },
		"Reconnect":       func() { resolve.Reconnect(nil, resolve.Backoff{}) },
	} {
		t.Run(name, func(t *testing.T) { require.PanicsWithValue(t, "resolve: nil resolver", construct) })
	}
	for want, b := range map[string]resolve.Backoff{
		"resolve: backoff: jitter -1 must be from 0 to 100":  {Jitter: -1},
		"resolve: backoff: min -1ns must be more than 0":     {Min: -1},
		"resolve: backoff: max 1s must be at least min 1m0s": {Min: time.Minute, Max: time.Second},
	} {
		require.PanicsWithValue(t, want, func() { resolve.Reconnect(well, b) })
	}
	require.NotPanics(t, func() { resolve.Reconnect(well, resolve.Backoff{Max: time.Millisecond}) })
}
