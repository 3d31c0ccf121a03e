package kit_test

import (
	"testing"
	"time"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/kit"
)

func TestInvalidArguments(t *testing.T) {
	for message, construct := range map[string]func(){
		"kit: nil newInstancer":                      func() { kit.New(nil) },
		"kit: backoff: min -1ns must be more than 0": func() { kit.WithBackoff(resolve.Backoff{Min: -1}) },
		"kit: backoff: max 1s must be at least min 2s": func() {
			kit.WithBackoff(resolve.Backoff{Min: 2 * time.Second, Max: time.Second})
		},
		"kit: backoff: jitter -1 must be from 0 to 100": func() { kit.WithBackoff(resolve.Backoff{Jitter: -1}) },
	} {
		t.Run(message, func(t *testing.T) { require.PanicsWithValue(t, message, construct) })
	}
}

// A field that is 0 has its default, and a nil option is ignored.
func TestZeroOptions(t *testing.T) {
	none := func(string) (sd.Instancer, error) { return sd.FixedInstancer{}, nil }
	for _, b := range []resolve.Backoff{{}, {Min: 5 * time.Minute}, {Max: time.Millisecond}, {Jitter: 1}} {
		require.NotPanics(t, func() { kit.New(none, kit.WithBackoff(b), kit.WithParse(nil), nil) }, "%+v", b)
	}
}
