package grpclayer

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// name is the name of the balancer and the scheme in all tests.
const name = "gotower-test"

func TestMain(m *testing.M) {
	Register(name)
	// Most parallel tests wait, so more of them than CPUs may run.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
