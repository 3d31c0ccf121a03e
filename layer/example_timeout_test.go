package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleResponseHeaderTimeout() {
	slow := layer.Func[string, string](func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	svc := layer.ResponseHeaderTimeout[string, string](250*time.Millisecond, layer.WithTarget[string]("greeter"))(slow)

	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	fmt.Println(errors.Is(err, layer.ErrResponseHeaderTimeout), errors.Is(err, layer.ErrTimeout))
	// Output:
	// response header timeout greeter (waited 250ms): limit of 250ms on the response headers exceeded
	// true true
}

// stalling sends one line, and then nothing more.
func stalling(ctx context.Context, _ string) (*response, error) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	go func() { _, _ = io.WriteString(w, "hello\n") }()
	return &response{Body: r}, nil
}

func ExampleIdleTimeout() {
	svc := layer.IdleTimeout[string, *response](time.Millisecond)(layer.Func[string, *response](stalling))

	rsp, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	_, err = io.ReadAll(rsp.Body)
	fmt.Println(err)
	_ = rsp.Body.Close()
	// Output:
	// <nil>
	// idle timeout (waited 1ms): limit of 1ms on silence exceeded
}
