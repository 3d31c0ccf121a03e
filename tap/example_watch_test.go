package tap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// The next request that fails, and how it came to where it failed.
func ExampleRegistry_Watch() {
	registry := new(tap.Registry)
	choose := func(next layer.Service[string, string]) layer.Service[string, string] {
		return layer.Func[string, string](func(ctx context.Context, path string) (string, error) {
			layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "coin", State: layer.State{{Key: "side", Value: "heads"}}})
			return next.Call(ctx, path)
		})
	}
	leaf := layer.Func[string, string](func(_ context.Context, path string) (string, error) {
		if path == "/broken" {
			return "", errors.New("broken")
		}
		return "fine", nil
	})
	svc := tap.Explain(registry, verse{})(choose(tap.Layer(registry, verse{}, tap.Outbound)(leaf)))

	ctx, cancel := context.WithCancel(context.Background())
	traffic := make(chan struct{})
	go func() {
		defer close(traffic)
		for ctx.Err() == nil && registry.Describe().State.Get("watching") == 0 { // a request that has begun is not explained any more
			runtime.Gosched()
		}
		for ctx.Err() == nil {
			_, _ = svc.Call(ctx, "/poem")
			_, _ = svc.Call(ctx, "/broken")
		}
	}()
	request := &tappb.WatchRequest{Limit: 1, Explain: true, Response: &tappb.ResponseMatch{Failures: true}}
	for e, err := range registry.Watch(ctx, request) {
		switch {
		case err != nil:
			fmt.Println(err)
		case e.Dropped > 0:
			fmt.Println("missed", e.Dropped)
		case e.RequestInit != nil:
			fmt.Println("req", e.RequestInit.Method, e.RequestInit.Path)
		case e.ResponseEnd != nil:
			fmt.Print("end ", e.ResponseEnd.Explanation[0])
		}
	}
	cancel()
	<-traffic
	// Output:
	// req GET /broken
	// end coin       side=heads
}

// Bodies are shown only after a hook has seen them.
func ExampleWithBodies() {
	registry := tap.NewRegistry(tap.WithBodies(4<<10, func(contentType string, body []byte) []byte {
		if contentType != "application/json" || bytes.Contains(body, []byte("password")) {
			return nil
		}
		return body
	}))
	fmt.Print(registry.Describe())
	// Output: tap        watching=0 dropped=0
}
