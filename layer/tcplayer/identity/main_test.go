package identity_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // the heap is small
	goleak.VerifyTestMain(m)
}
