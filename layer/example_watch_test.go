package layer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

// The time limit changes while requests are served. The services below stay.
func ExampleReloadable() {
	type config struct{ timeout time.Duration }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	slow := layer.Func[string, string](func(ctx context.Context, name string) (string, error) {
		if limit, ok := ctx.Deadline(); ok && time.Until(limit) < time.Second { // too soon
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
		return "hello " + name, nil
	})
	limited := layer.Limit[string, string](8)(slow)
	svc := layer.NewReloadable(ctx, config{timeout: time.Millisecond},
		func(_ context.Context, c config) layer.Service[string, string] {
			return layer.Timeout[string, string](c.timeout)(limited)
		})

	_, err := svc.Call(ctx, "ann")
	fmt.Println(errors.Is(err, layer.ErrTimeout))
	fmt.Println(svc.Set(config{timeout: time.Minute}))
	fmt.Println(svc.Call(ctx, "ann"))
	// Output:
	// true
	// <nil>
	// hello ann <nil>
}
