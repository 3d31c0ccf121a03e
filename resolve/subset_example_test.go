package resolve_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// Four clients share six endpoints, each of which is used by two of them.
func ExampleSubset() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	source := static.New(map[string][]resolve.Endpoint{"web": {
		endpoint("10.0.0.1:80"), endpoint("10.0.0.2:80"), endpoint("10.0.0.3:80"),
		endpoint("10.0.0.4:80"), endpoint("10.0.0.5:80"), endpoint("10.0.0.6:80"),
	}})
	for peer := range 4 {
		mine := resolve.Subset(source, resolve.SubsetPolicy{Peer: peer, Peers: 4, Size: 3})
		for update := range mine.Resolve(ctx, "web") {
			fmt.Print("peer ", peer, ":")
			for _, e := range update.Endpoints {
				fmt.Print(" ", e.Addr)
			}
			fmt.Println()
			break
		}
	}
	// Output:
	// peer 0: 10.0.0.2:80 10.0.0.3:80 10.0.0.4:80
	// peer 1: 10.0.0.2:80 10.0.0.4:80 10.0.0.6:80
	// peer 2: 10.0.0.1:80 10.0.0.5:80 10.0.0.6:80
	// peer 3: 10.0.0.1:80 10.0.0.3:80 10.0.0.5:80
}
