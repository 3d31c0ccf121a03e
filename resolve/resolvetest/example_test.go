package resolvetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
	"github.com/gotower/gotower/resolve/static"
)

// A package needs only this test.
func TestExample(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{
		New: func(testing.TB) (resolve.Resolver, resolvetest.Source) {
			r := static.New(nil)
			return r, resolvetest.Source{
				Set:          r.Set,
				Empty:        func(target string) { r.Set(target) },
				DoesNotExist: r.Delete,
			}
		},
	})
}

// The checks of the suite with their names and claims.
func ExampleChecks() {
	for _, check := range resolvetest.Checks() {
		if strings.HasPrefix(check.Name, "interruption") {
			fmt.Printf("%s: %s\n", check.Name, check.Claim)
		}
	}
	// Output:
	// interruption: continue after an interruption; keep the set until the first message after it, which replaces the whole set
	// interruption, then empty: drop the set if the target is empty after an interruption
	// interruption, then gone: drop the set if the target does not exist after an interruption
	// interruption, then the same: change nothing if the source is unchanged after an interruption
	// interruption of two streams: update all streams of a target after an interruption
	// interruption is over: yield an update after an interruption, even if it is unchanged
}
