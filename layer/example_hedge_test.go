package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleHedge() {
	// Two endpoints, of which one hangs. A balancer would look at the Attempts in
	// the same way.
	endpoints := layer.Func[string, string](func(ctx context.Context, name string) (string, error) {
		tries := layer.AttemptsFromContext(ctx)
		if !tries.Has("a") {
			tries.Add("a")
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
		return "hello " + name + ", says b", nil
	})
	budget := layer.NewBudget(10*time.Second, 0.2, 10) // of the Retry above, too
	svc := layer.Hedge[string, string](layer.HedgePolicy[string]{
		Budget:   budget,
		MinDelay: 500 * time.Millisecond,
		MaxDelay: 500 * time.Millisecond, // no samples are needed for a fixed delay
	})(endpoints)

	fmt.Println(svc.Call(context.Background(), "ann"))
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello ann, says b <nil>
	// hedge      delay=500ms budget=0 sent=1 won=1 skipped=0
	// layer.Func
}
