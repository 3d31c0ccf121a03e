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

// A second service takes what the first one rejects.
func ExampleFallback_service() {
	gate := layer.NewGate()
	gate.Close()
	shut := layer.Gated[string, string](gate)(greet)
	svc := layer.Fallback(layer.FallbackPolicy[string, string]{Service: greet})(shut)

	fmt.Println(svc.Call(context.Background(), "ann"))
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello ann <nil>
	// fallback   replaced=1
	//   layer.Func
	// gate       state=shut rejected=1
	// layer.Func
}
