package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleReconnect() {
	ctx, cancel := context.WithCancel(context.Background())
	connect := func(context.Context) (layer.Service[string, string], error) {
		fmt.Println("connecting")
		return greet, nil
	}
	svc := layer.Reconnect(ctx, connect, layer.DefaultBackoff())

	fmt.Println(svc.Ready(ctx))
	fmt.Println(svc.Call(ctx, "ann"))
	fmt.Print(layer.Describe(svc))

	cancel()
	_, err := svc.Call(context.Background(), "bob")
	fmt.Println(err)
	// Output:
	// connecting
	// <nil>
	// hello ann <nil>
	// reconnect  state=connected connects=1 failed=0 rejected=0
	//   layer.Func
	// reconnect: closed: context canceled
}
