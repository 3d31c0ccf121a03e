package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/gotower/gotower/resolve"
)

// A controller restarts, and answers before it has read its caches.
func ExampleServeStale() {
	web := []resolve.Endpoint{endpoint("10.0.0.1:80"), endpoint("10.0.0.2:80")}
	controller := resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			_ = yield(resolve.Update{Kind: resolve.Replace, Endpoints: web}, nil) &&
				yield(resolve.Update{}, errors.New("controller is gone")) &&
				yield(resolve.Update{Kind: resolve.Empty}, nil) &&
				yield(resolve.Update{Kind: resolve.Replace, Endpoints: web[:1]}, nil)
			<-ctx.Done()
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stale := resolve.ServeStale(controller, resolve.StalePolicy{Grace: time.Minute})
	for update, err := range stale.Resolve(ctx, "web") {
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(update.Kind, len(update.Endpoints))
		if len(update.Endpoints) == 1 {
			for _, k := range stale.Status() { // for an admin page
				fmt.Println(k.Target, k.State, k.Endpoints, k.Age, k.IsStale)
			}
			cancel()
		}
	}
	// Output:
	// replace 2
	// controller is gone
	// replace 1
	// web exists 1 0s false
}
