package httplayer

import (
	"flag"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/conformance"
)

func TestMain(m *testing.M) {
	conformance.Shorten()
	debug.SetGCPercent(800) // the heap is small
	// Most parallel tests wait for a time limit, so more of them than CPUs may run.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(patient{m})
}

// patient waits, after the tests, for what ends by itself: goleak has but half a
// second for it.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	for end := time.Now().Add(patience); code == 0 && time.Now().Before(end); {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}
