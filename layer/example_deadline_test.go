package layer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

// timedRequest carries its remaining time, as a header would.
type timedRequest struct {
	Name string
	Left time.Duration // 0: the caller does not say
}

func ExampleDeadlineFromRequest() {
	svc := layer.DeadlineFromRequest[timedRequest, string](func(r timedRequest) (time.Duration, bool) { return r.Left, r.Left != 0 })(
		layer.Func[timedRequest, string](func(ctx context.Context, r timedRequest) (string, error) {
			_, limited := ctx.Deadline()
			return fmt.Sprintf("hello %s, limited: %v", r.Name, limited), nil
		}))

	fmt.Println(svc.Call(context.Background(), timedRequest{Name: "ann"}))
	fmt.Println(svc.Call(context.Background(), timedRequest{Name: "bob", Left: time.Minute}))
	_, err := svc.Call(context.Background(), timedRequest{Name: "eve", Left: -time.Second})
	fmt.Println(err)
	fmt.Println(errors.Is(err, layer.ErrNotReady), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// hello ann, limited: false <nil>
	// hello bob, limited: true <nil>
	// deadline: out of time: the caller's time was over when the request came: context deadline exceeded
	// true true
}

func ExampleDeadlineToRequest() {
	svc := layer.DeadlineToRequest[timedRequest, string](
		func(r timedRequest, left time.Duration) timedRequest { r.Left = left; return r }, 100*time.Millisecond)(
		layer.Func[timedRequest, string](func(_ context.Context, r timedRequest) (string, error) {
			return fmt.Sprintf("hello %s, about %v are left", r.Name, r.Left.Round(time.Minute)), nil
		}))

	fmt.Println(svc.Call(context.Background(), timedRequest{Name: "ann"}))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	fmt.Println(svc.Call(ctx, timedRequest{Name: "bob"}))
	// Output:
	// hello ann, about 0s are left <nil>
	// hello bob, about 3m0s are left <nil>
}
