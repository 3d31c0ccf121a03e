// Package enginetest has code that the tests of both HTTP engines share.
package enginetest

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Main runs the tests and exits. It fails if a goroutine remains after them, or under the race
// detector a pooled buffer. Eight parallel tests may run on fewer CPUs, because most of them wait
// for a time limit.
func Main(m *testing.M) {
	flag.Parse() //nolint:revive // called by TestMain
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := message.BuffersInUse(); code == 0 && n != 0 {
			panic(fmt.Sprintf("%d pooled buffers are in use after all tests", n))
		}
		os.Exit(code) //nolint:revive,forbidigo // called by TestMain
	}))
}
