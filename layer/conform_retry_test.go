package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestRetryConforms(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	marked := func(rsp R) { rsp.Header["again"] = "yes" }
	classify := layer.Classify(func(o layer.Outcome[R]) layer.Class {
		if o.Err == nil && o.Response.Header["again"] != "" {
			return layer.Retryable
		}
		return layer.ByError(o)
	})
	endless := layer.NewBudget(0, 0, 1_000_000)
	pause := 250 * time.Millisecond
	for name, spec := range map[string]layertest.Layer{
		"defaults": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{}), Tries: 3, Pause: pause},
		"responses": {
			Layer: layer.Retry(layer.RetryPolicy[Q, R]{Tries: 5, Budget: endless}, classify),
			Tries: 5, Pause: pause, Again: marked,
		},
		"per try": {
			Layer: layer.Retry(layer.RetryPolicy[Q, R]{PerTry: time.Second, Budget: endless}, classify),
			Tries: 3, Pause: time.Second + pause, Again: marked,
		},
		"no body kept": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{Body: -1}), Tries: 3, Pause: pause},
		"one try":      {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{Tries: 1}), Transparent: true},
		"over a limit": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Limit(4).Layer(),
			Limit: 4, Tries: 3, Pause: pause, Again: marked,
		},
		"over a queue": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				Queue(16, 3*time.Second).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, Tries: 3, Pause: pause, Again: marked,
		},
		"in a queue": {
			Layer: layer.NewStack[Q, R]().Queue(16, 3*time.Second).
				With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless, PassRefusals: true}, classify)).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, Tries: 3, Pause: pause, Again: marked,
		},
		"in itself": {
			Layer: layer.NewStack[Q, R]().
				With("outer", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				With("inner", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Layer(),
			Tries: 3, Pause: pause, Again: marked,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Conform(t, spec) })
	}
}
