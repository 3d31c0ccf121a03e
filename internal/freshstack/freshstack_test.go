package freshstack_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/freshstack"
	"github.com/gotower/gotower/internal/panics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCall(t *testing.T) {
	called := false
	freshstack.Call(func() { called = true })
	require.True(t, called)
}

// The error has the place of the panic, not that of Call.
func TestCallPanics(t *testing.T) {
	err := panics.Contain(func() { freshstack.Call(func() { panic("broken") }) })
	require.ErrorContains(t, err, "panic at freshstack_test.go:")
	require.ErrorContains(t, err, ": broken")
}

func TestCallExits(t *testing.T) {
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		freshstack.Call(runtime.Goexit)
		returned = true
	}()
	<-done
	require.False(t, returned)
}
