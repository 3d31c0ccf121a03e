package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// A health check or an operator owns the gate.
func ExampleGate() {
	var gate layer.Gate
	svc := layer.Gated[string, string](&gate)(greet)

	gate.Close()
	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)

	gate.Open()
	fmt.Println(svc.Call(context.Background(), "ann"))
	// Output:
	// gate: not ready: closed
	// hello ann <nil>
}
