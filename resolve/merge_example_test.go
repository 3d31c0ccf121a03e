package resolve_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func ExampleMerge() {
	east, _ := static.Endpoints("10.1.0.1:80", "10.0.0.1:80")
	west, _ := static.Endpoints("10.0.0.1:80", "10.2.0.1:80")
	both := resolve.Merge(
		static.New(map[string][]resolve.Endpoint{"web": east}),
		static.New(map[string][]resolve.Endpoint{"web": west}),
	)
	for update := range both.Resolve(context.Background(), "web") {
		for _, e := range update.Endpoints {
			fmt.Println(e.Addr)
		}
		break // it would wait for a change
	}
	// Output:
	// 10.0.0.1:80
	// 10.1.0.1:80
	// 10.2.0.1:80
}
