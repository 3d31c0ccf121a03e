package resolvetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
	"github.com/gotower/gotower/resolve/static"
)

// TestExample is all that a package needs to have its resolver tested.
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

// What the suite asks of a resolver: each check has a name and a claim.
func ExampleChecks() {
	for _, check := range resolvetest.Checks() {
		if strings.HasPrefix(check.Name, "interruption") {
			fmt.Printf("%s: %s\n", check.Name, check.Claim)
		}
	}
	// Output:
	// interruption: go on after the source broke the stream; keep what is known until the first message after it, which replaces it whole
	// interruption, then empty: forget what was known if the first message after an interruption says that there is nothing
	// interruption, then gone: forget what was known if the first message after an interruption says that the target does not exist
	// interruption, then the same: change nothing if the source is after an interruption as it was before
	// interruption of two streams: get all streams of a target up to date after an interruption
	// interruption is over: say, by an update, that the source is back, even if it is as it was before
}
