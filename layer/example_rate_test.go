package layer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

func ExampleRateLimit() {
	svc := layer.RateLimit[string, string](0.001, 2)(greet) // one in 1000 s, and two to begin with

	for range 3 {
		greeting, err := svc.Call(context.Background(), "ann")
		after, ok := layer.RetryAfter(err)
		fmt.Println(greeting, err, after, ok)
	}
	// Output:
	// hello ann <nil> 0s false
	// hello ann <nil> 0s false
	//  rate: not ready: out of tokens at 0.001 a second 16m40s true
}

func ExampleRateLimitBy() {
	initial := func(name string) string { return strings.ToUpper(name[:1]) }
	svc := layer.RateLimitBy[string, string, string](initial, 0.001, 1, 10_000)(greet)

	for _, name := range []string{"ann", "bob", "anthony"} {
		fmt.Println(svc.Call(context.Background(), name))
	}
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello ann <nil>
	// hello bob <nil>
	//  rate_by: not ready: out of tokens at 0.001 a second
	// rate_by    per_second=0.001 burst=1 keys=2 max_keys=10000 rejected=1
	// layer.Func
}
