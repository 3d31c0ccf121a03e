package layer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleFallback() {
	down := layer.Func[string, string](func(context.Context, string) (string, error) {
		return "", errors.New("connection reset")
	})
	svc := layer.Fallback(layer.FallbackPolicy[string, string]{
		Handle: func(_ context.Context, name string, o layer.Outcome[string]) (string, error) {
			return fmt.Sprintf("hello %s (%v)", name, o.Err), nil
		},
	})(down)

	fmt.Println(svc.Call(context.Background(), "ann"))
	// Output:
	// hello ann (connection reset) <nil>
}
