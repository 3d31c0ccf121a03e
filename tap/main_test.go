package tap_test

import (
	"flag"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/conformance"
)

// Tests wait more than they work, so more of them run at once than there are processors.
func TestMain(m *testing.M) {
	conformance.Shorten()
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	debug.SetGCPercent(800) // the heap is small
	goleak.VerifyTestMain(m)
}
