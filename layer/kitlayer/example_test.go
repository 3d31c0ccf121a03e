package kitlayer_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

func upper(_ context.Context, request any) (any, error) {
	return strings.ToUpper(request.(string)), nil
}

func ExampleService() {
	svc := layer.NewStack[string, string]().
		Timeout(time.Minute).
		Limit(100).
		Service(kitlayer.Service[string, string](upper))

	rsp, err := svc.Call(context.Background(), "hello")
	fmt.Println(rsp, err)
	// Output: HELLO <nil>
}

func ExampleEndpoint() {
	shout := layer.Func[string, string](func(_ context.Context, s string) (string, error) { return s + "!", nil })
	e := kitlayer.Endpoint(shout)

	rsp, err := e(context.Background(), "hello")
	fmt.Println(rsp, err)

	_, err = e(context.Background(), 1)
	fmt.Println(err)
	// Output:
	// hello! <nil>
	// kitlayer: request is a int and not a string: give both sides the same type
}

func ExampleLayer() {
	logged := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) {
			fmt.Println("request:", request)
			return next(ctx, request)
		}
	}
	svc := layer.NewStack[string, string]().
		With("log", kitlayer.Layer[string, string](logged)).
		Limit(100).
		Service(kitlayer.Service[string, string](upper))

	rsp, err := svc.Call(context.Background(), "hello")
	fmt.Println(rsp, err)
	// Output:
	// request: hello
	// HELLO <nil>
}

func ExampleMiddleware() {
	stack := layer.NewStack[string, string]().Timeout(time.Minute).Limit(0)
	e := kitlayer.Middleware(stack.Layer())(upper)

	_, err := e(context.Background(), "hello")
	fmt.Println(err)
	// Output: limit: not ready: 0 of 0 in flight
}
