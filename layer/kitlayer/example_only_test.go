package kitlayer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

// A limit applies to the large requests of an endpoint only.
func Example_only() {
	sum := func(_ context.Context, request any) (any, error) { return len(request.(string)), nil }
	large := func(request string) bool { return len(request) > 3 }
	limit := kitlayer.NewStack[string, int]().Limit(0).Layer()
	sum = kitlayer.Middleware(layer.Only(large, limit))(sum)

	fmt.Println(sum(context.Background(), "abc"))
	_, err := sum(context.Background(), "abcd")
	fmt.Println(err)
	// Output:
	// 3 <nil>
	// limit: not ready: 0 of 0 in flight
}
