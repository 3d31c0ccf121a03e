package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// greet is a service made from a function.
var greet = layer.Func[string, string](func(_ context.Context, name string) (string, error) {
	return "hello " + name, nil
})

// shouting is a custom layer: embed the inner service, override Call.
type shouting struct{ layer.Service[string, string] }

func (s shouting) Call(ctx context.Context, name string) (string, error) {
	greeting, err := s.Service.Call(ctx, name)
	return strings.ToUpper(greeting), err
}

func shout(next layer.Service[string, string]) layer.Service[string, string] { return shouting{next} }

func ExampleStack() {
	svc := layer.NewStack[string, string]().
		Timeout(5*time.Second).
		With("shout", shout).
		Queue(1000, 3*time.Second).
		Limit(64).
		Service(greet)

	fmt.Println(svc.Call(context.Background(), "ann"))
	fmt.Print(layer.Describe(svc))
	// Output:
	// HELLO ANN <nil>
	// timeout    after=5s
	// shout
	// queue      waiting=0 capacity=1000 max_wait=3s
	// limit      in_flight=0 max=64
	// layer.Func
}

func ExampleLimit() {
	svc := layer.Limit[string, string](0)(greet)

	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	fmt.Println(errors.Is(err, layer.ErrNotReady))
	// Output:
	// limit: not ready: 0 of 0 in flight
	// true
}

func ExampleQueue() {
	full := layer.Limit[string, string](0)(greet)
	svc := layer.Queue[string, string](10, time.Millisecond, layer.WithTarget[string]("greeter"))(full)

	_, err := svc.Call(context.Background(), "ann")
	var where *layer.Error
	fmt.Println(errors.As(err, &where), where.Layer, where.Target, where.Waited >= time.Millisecond)
	fmt.Println(where.Err)
	// Output:
	// true queue greeter true
	// limit: not ready: 0 of 0 in flight
}

func ExampleTimeout() {
	slow := layer.Func[string, string](func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	svc := layer.Timeout[string, string](250 * time.Millisecond)(slow)

	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	// Output:
	// timeout (waited 250ms): limit of 250ms exceeded
}

func ExampleRouter() {
	services := map[string]layer.Service[string, string]{"greet": greet}
	svc := layer.Router(
		func(req string) (string, error) {
			if _, known := services[req]; !known {
				return "", fmt.Errorf("no service is called %q", req)
			}
			return req, nil
		},
		func(name string) layer.Service[string, string] { return services[name] },
	)
	fmt.Println(svc.Call(context.Background(), "greet"))
	_, err := svc.Call(context.Background(), "sing")
	fmt.Println(err)
	// Output:
	// hello greet <nil>
	// router: no route: no service is called "sing"
}

func ExamplePoll() {
	svc := layer.Limit[string, string](1)(greet)
	fmt.Println(layer.Poll(svc))
	fmt.Println(layer.Poll(layer.Limit[string, string](0)(greet)))
	// Output:
	// <nil>
	// not ready
}
