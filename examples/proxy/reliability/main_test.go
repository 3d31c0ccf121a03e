package reliability

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// scratch is the directory for built programs.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests mostly wait, so more of them run concurrently than there are processors.
	err := flag.Set("test.parallel", "8")
	if err != nil {
		panic(err)
	}
	if scratch, err = os.MkdirTemp("", "gotower-reliability-"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exit int) {
		_ = os.RemoveAll(scratch)
		os.Exit(exit)
	}))
}

// full selects the attacks' full size.
var full = os.Getenv("GOTOWER_TESTS") == "full"

// whole begins a test of a whole proxy. Short forms run in parallel.
func whole(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds and starts a program")
	}
	if !full {
		t.Parallel()
	}
}

// size returns an attack's size.
func size(short, long int) int {
	if full {
		return long
	}
	return short
}
