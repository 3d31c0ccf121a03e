package kitlayer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/resolve/kit"
)

func upper(_ context.Context, request any) (any, error) {
	return strings.ToUpper(request.(string)), nil
}

func ExampleService() {
	svc := kitlayer.NewStack[string, string]().
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
	// kitlayer: the request is of type int, want string: use the same types on both sides
}

func ExampleLayer() {
	logged := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) {
			fmt.Println("request:", request)
			return next(ctx, request)
		}
	}
	svc := kitlayer.NewStack[string, string]().
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
	stack := kitlayer.NewStack[string, string]().Timeout(time.Minute).Limit(0)
	e := kitlayer.Middleware(stack.Layer())(upper)

	_, err := e(context.Background(), "hello")
	fmt.Println(err)
	// Output: limit: not ready: 0 of 0 in flight
}

// An error of the endpoint is retried without settings, for any request type.
func ExampleNewStack() {
	attempts := 0
	flaky := func(ctx context.Context, request any) (any, error) {
		if attempts++; attempts == 1 {
			return nil, errors.New("connection refused")
		}
		return upper(ctx, request)
	}
	svc := kitlayer.NewStack[string, string]().
		Timeout(time.Minute).
		Retry(layer.RetryPolicy[string, string]{}).
		Service(kitlayer.Service[string, string](flaky))

	rsp, err := svc.Call(context.Background(), "hello")
	fmt.Println(rsp, err, attempts)
	// Output: HELLO <nil> 2
}

// The instances of a go-kit factory are balanced.
func ExampleFactory() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory := func(instance string) (endpoint.Endpoint, io.Closer, error) {
		return func(_ context.Context, request any) (any, error) {
			return fmt.Sprintf("%v from %s", request, instance), nil
		}, nil, nil
	}
	instances := kit.New(func(string) (sd.Instancer, error) { return sd.FixedInstancer{"10.0.0.1:80"}, nil })
	service := kitlayer.Factory[string, string](factory)
	svc := kitlayer.NewStack[string, string]().
		Queue(1000, time.Minute).
		Service(balance.Resolve(ctx, instances, balance.Config{Target: "hello"},
			func(ctx context.Context, t discover.Target) layer.Service[string, string] {
				return service(ctx, t.Endpoint.Addr.String())
			}))

	rsp, err := svc.Call(ctx, "hello")
	fmt.Println(rsp, err)
	// Output: hello from 10.0.0.1:80 <nil>
}
