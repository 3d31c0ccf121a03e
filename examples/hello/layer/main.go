// Command layer writes a layer of its own and uses it in a stack.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// timed prints how long each attempt took. Ready is inherited from the inner service.
type timed struct{ layer.Service[string, string] }

func (t timed) Call(ctx context.Context, req string) (string, error) {
	start := time.Now()
	rsp, err := t.Service.Call(ctx, req)
	fmt.Printf("attempt: %q, error %v, %v\n", rsp, err, time.Since(start))
	return rsp, err
}

func main() {
	calls := 0
	upper := layer.Func[string, string](func(_ context.Context, req string) (string, error) {
		if calls++; calls == 1 {
			return "", errors.New("connection reset")
		}
		return strings.ToUpper(req), nil
	})
	timing := func(next layer.Service[string, string]) layer.Service[string, string] { return timed{next} }
	retry := layer.RetryPolicy[string, string]{
		CanRetry: func(string) bool { return true },                          // may be called twice
		RetryIf:  func(o layer.Outcome[string]) bool { return o.Err != nil }, // any error
	}
	svc := layer.NewStack[string, string]().Timeout(time.Second).Retry(retry).With("timed", timing).Limit(10).Service(upper)
	fmt.Println(svc.Call(context.Background(), "hello"))
	fmt.Println(layer.Describe(svc))
}
