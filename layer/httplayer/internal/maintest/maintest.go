// Package maintest runs the tests of an HTTP engine.
package maintest

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Run runs the tests and exits. It fails if a goroutine remains after them, or under the race
// detector a pooled buffer. Eight parallel tests may run on fewer CPUs, because most of them wait
// for a time limit.
func Run(m *testing.M) {
	flag.Parse() //nolint:revive // called by TestMain
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := message.BuffersInUse(); code == 0 && n != 0 {
			panic(fmt.Sprintf("%d pooled buffers are in use after all tests", n))
		}
		os.Exit(code) //nolint:revive // called by TestMain
	}))
}
