package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

func ExampleBreaker() {
	down := layer.Func[string, string](func(context.Context, string) (string, error) {
		return "", errors.New("connection reset")
	})
	svc := layer.Breaker[string, string](layer.BreakerPolicy{
		ConsecutiveFailures: 2, Backoff: layer.Backoff{Min: time.Minute, Max: time.Hour},
	}, layer.WithTarget[string]("greeter"))(down)

	for range 3 {
		_, err := svc.Call(context.Background(), "ann")
		reason, _, _ := strings.Cut(err.Error(), ", next probe in ")
		fmt.Println(errors.Is(err, layer.ErrNotReady), reason)
	}
	fmt.Println(layer.Describe(svc).State.Get("state"))
	// Output:
	// false connection reset
	// false connection reset
	// true breaker greeter: not ready: 2 consecutive failures
	// open
}
