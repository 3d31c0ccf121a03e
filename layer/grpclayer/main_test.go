package grpclayer

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/conformance"
)

// name is the name of the balancer and the scheme in all tests.
const name = "gotower-test"

func TestMain(m *testing.M) {
	conformance.Shorten()
	Register(name)
	// Most parallel tests wait, so more of them than CPUs may run.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
