package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleLazy() {
	svc := layer.Lazy(func() layer.Service[string, string] {
		fmt.Println("made")
		return greet
	})
	for range 2 {
		fmt.Println(svc.Call(context.Background(), "ann"))
	}
	// Output:
	// made
	// hello ann <nil>
	// hello ann <nil>
}
