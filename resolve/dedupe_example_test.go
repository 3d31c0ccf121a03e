package resolve_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/gotower/gotower/resolve"
)

func ExampleDedupe() {
	source := says(
		resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{endpoint("10.0.0.1:80")}},
		resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{endpoint("10.0.0.1:80"), endpoint("10.0.0.2:80")}},
		resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{endpoint("10.0.0.2:80")}}, // redundant
		resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}},
	)
	for update, err := range resolve.Dedupe(source).Resolve(context.Background(), "web") {
		fmt.Println(update.Kind, len(update.Endpoints), update.Removed, err)
	}
	// Output:
	// replace 1 [] <nil>
	// add 1 [] <nil>
	// remove 0 [10.0.0.1:80] <nil>
	// kind 0 0 [] connection reset
}
