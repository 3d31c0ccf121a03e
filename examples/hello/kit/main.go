// Command kit puts layers around an endpoint of go-kit, which stays an endpoint of go-kit.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

func main() {
	calls := 0
	greet := func(_ context.Context, name any) (any, error) { // an endpoint.Endpoint
		if calls++; calls == 1 {
			return nil, errors.New("connection reset")
		}
		return fmt.Sprintf("hello, %v", name), nil
	}
	stack := kitlayer.NewStack[string, string]().
		Timeout(time.Second).
		Retry(layer.RetryPolicy[string, string]{}).
		Limit(10)
	greet = kitlayer.Middleware(stack.Layer())(greet)

	rsp, err := greet(context.Background(), "go-kit")
	fmt.Println(rsp, err, "after", calls, "calls")
	_, err = greet(context.Background(), 42)
	fmt.Println(err)
}
