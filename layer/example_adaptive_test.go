package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleAdaptiveLimit() {
	svc := layer.AdaptiveLimit[string, string](layer.AdaptivePolicy{Min: 4, Max: 200})(greet)

	fmt.Println(svc.Call(context.Background(), "ann"))
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello ann <nil>
	// adaptive   in_flight=0 limit=20 min=4 max=200 latency=0s probing=false rejected=0
	// layer.Func
}
