package profiles_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/conformance"
)

func TestMain(m *testing.M) {
	conformance.Shorten()
	debug.SetGCPercent(800) // the heap is small
	goleak.VerifyTestMain(m)
}
