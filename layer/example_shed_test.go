package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleShed() {
	hold, held := make(chan struct{}), make(chan struct{})
	svc := layer.NewStack[string, string]().
		With("shed", layer.Shed[string, string](layer.ShedPolicy{})).
		Limit(2).
		Service(layer.Func[string, string](func(_ context.Context, name string) (string, error) {
			held <- struct{}{}
			<-hold
			return "hello " + name, nil
		}))
	background := context.Background()
	critical := layer.WithPriority(background, layer.PriorityCritical)
	bulk := layer.WithPriority(background, layer.PriorityBulk)

	for _, ctx := range []context.Context{background, bulk} {
		go svc.Call(ctx, "ann")
		<-held
	}
	_, err := svc.Call(critical, "ann") // now the limit is seen to be short
	fmt.Println(err)
	_, err = svc.Call(bulk, "bob")
	fmt.Println(err)
	close(hold)
	// Output:
	// limit: not ready: 2 of 2 in flight
	// shed: not ready: priority bulk: the room that is left is for higher ones
}

func ExamplePriorityFromContext() {
	ctx := context.Background()
	fmt.Println(layer.PriorityFromContext(ctx))
	ctx = layer.WithPriority(ctx, layer.PriorityLow)
	fmt.Println(layer.PriorityFromContext(ctx), layer.PriorityFromContext(ctx) < layer.PriorityNormal)
	// Output:
	// normal
	// low true
}
