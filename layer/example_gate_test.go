package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// A health check, or whoever operates the service, holds the gate.
func ExampleGate() {
	gate := layer.NewGate()
	svc := layer.Gated[string, string](gate)(greet)

	gate.Limit(1) // try it with one request
	fmt.Println(svc.Call(context.Background(), "ann"))
	_, err := svc.Call(context.Background(), "bob")
	fmt.Println(err)

	gate.Open()
	fmt.Println(svc.Call(context.Background(), "bob"))
	// Output:
	// hello ann <nil>
	// gate: not ready: limited, and every place is taken
	// hello bob <nil>
}
