package grpclayer

import (
	"testing"

	"go.uber.org/goleak"
)

// name is the name of the balancer and the scheme in all tests.
const name = "gotower-test"

func TestMain(m *testing.M) {
	Register(name)
	goleak.VerifyTestMain(m)
}
