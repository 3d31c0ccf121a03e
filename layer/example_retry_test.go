package layer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleRetry() {
	tries := 0
	flaky := layer.Func[string, string](func(_ context.Context, req string) (string, error) {
		if tries++; tries < 3 {
			return "", errors.New("connection reset")
		}
		return "hello, " + req, nil
	})
	again := layer.WithClassifier(func(o layer.Outcome[string]) layer.Class {
		if o.Err != nil {
			return layer.Retryable
		}
		return layer.Success
	})
	svc := layer.Retry(layer.RetryPolicy[string, string]{}, again)(flaky)

	rsp, err := svc.Call(context.Background(), "world")
	fmt.Println(rsp, err, "after", tries, "attempts")
	fmt.Print(layer.Describe(svc))
	// Output:
	// hello, world <nil> after 3 attempts
	// retry      attempts=3 budget=98 retries=2 skipped=0
	// layer.Func
}
