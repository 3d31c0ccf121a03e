package layertest_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // the checks allocate much and keep little
	goleak.VerifyTestMain(m)
}
