package grpclayer

import (
	"testing"

	"go.uber.org/goleak"
)

// name is that of our balancer and our scheme in all tests.
const name = "gotower-test"

func TestMain(m *testing.M) {
	Register(name)
	goleak.VerifyTestMain(m)
}
