package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func ExampleFailover() {
	near, far := layertest.NewMock[string, string](), layertest.NewMock[string, string]()
	near.Serve(func(_ context.Context, name string) (string, error) { return name + " is near", nil })
	far.Serve(func(_ context.Context, name string) (string, error) { return name + " is far", nil })
	far.Allow(layertest.Unlimited)

	svc := layer.NewStack[string, string]().
		Queue(100, time.Minute).
		Service(layer.Failover[string, string](near, far, 10*time.Millisecond))

	fmt.Println(svc.Call(context.Background(), "ann")) // after 10 ms
	near.Allow(1)
	fmt.Println(svc.Call(context.Background(), "bob"))
	// Output:
	// ann is far <nil>
	// bob is near <nil>
}
