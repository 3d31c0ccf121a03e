package discover_test

import (
	"context"
	"fmt"
	"iter"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// A consumer of changes, such as a balancer, keeps their sum.
func ExampleEndpoints() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	scaleDown := make(chan struct{})
	resolver := resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(replace(at(1), at(2)), nil)
			<-scaleDown
			yield(remove(1), nil)
			<-ctx.Done()
		}
	})
	mk := func(ctx context.Context, t discover.Target) layer.Service[string, string] {
		return layer.Func[string, string](func(_ context.Context, req string) (string, error) {
			return req + " at " + t.Endpoint.Addr.String(), nil
		})
	}
	for change := range discover.Endpoints(ctx, resolver, "web", mk) {
		for _, e := range change.Added {
			rsp, err := e.Service.Call(ctx, "hello")
			fmt.Println("added:", rsp, err)
		}
		if len(change.Added) > 0 {
			close(scaleDown)
		}
		for _, e := range change.Removed {
			fmt.Println("removed:", e.Addr)
			cancel()
		}
	}
	// Output:
	// added: hello at 10.0.0.1:80 <nil>
	// added: hello at 10.0.0.2:80 <nil>
	// removed: 10.0.0.1:80
}
