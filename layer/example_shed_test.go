package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleShed() {
	hold, held := make(chan struct{}), make(chan struct{})
	svc := layer.NewStack[string, string]().
		Shed(layer.ShedPolicy{}).
		Limit(2).
		Service(layer.Func[string, string](func(_ context.Context, name string) (string, error) {
			held <- struct{}{}
			<-hold
			return "hello " + name, nil
		}))
	background := context.Background()
	go svc.Call(background, "ann")
	<-held
	_, err := svc.Call(layer.WithPriority(background, layer.PriorityBulk), "bob")
	fmt.Println(err)
	go svc.Call(layer.WithPriority(background, layer.PriorityCritical), "eve")
	<-held
	close(hold)
	// Output:
	// shed: not ready: the share of priority bulk is full
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
