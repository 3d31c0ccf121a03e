package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// A limit of 0 rejects every request except health checks.
func ExampleOnly() {
	limited := func(name string) bool { return name != "health" }
	svc := layer.Only(limited, layer.Limit[string, string](0))(greet)

	fmt.Println(svc.Call(context.Background(), "health"))
	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	// Output:
	// hello health <nil>
	// limit: not ready: 0 of 0 in flight
}
