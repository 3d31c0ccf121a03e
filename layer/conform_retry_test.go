package layer_test

import (
	"errors"
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
	classOf := func(o layer.Outcome[R]) layer.Class {
		if o.Err == nil && o.Response.Header["again"] != "" {
			return layer.Retryable
		}
		return layer.DefaultClassifier(o)
	}
	classify := layer.WithClassifier(classOf)
	sent := func(o layer.Outcome[R]) bool {
		return !errors.Is(o.Err, layer.ErrNotReady) && classOf(o).IsRetryable()
	}
	endless := layer.NewBudget(0, 0, 1_000_000)
	pause := 250 * time.Millisecond
	for name, spec := range map[string]layertest.Layer{
		"defaults": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{}), MaxAttempts: 3, Pause: pause},
		"responses": {
			Layer:       layer.Retry(layer.RetryPolicy[Q, R]{MaxAttempts: 5, Budget: endless}, classify),
			MaxAttempts: 5, Pause: pause, Retryable: marked,
		},
		"per try": {
			Layer:       layer.Retry(layer.RetryPolicy[Q, R]{AttemptTimeout: time.Second, Budget: endless}, classify),
			MaxAttempts: 3, Pause: time.Second + pause, Retryable: marked,
		},
		"no body kept": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{MaxBodyBytes: -1}), MaxAttempts: 3, Pause: pause},
		"one try":      {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{MaxAttempts: 1}), Transparent: true},
		"over a limit": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Limit(4).Layer(),
			Limit: 4, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"over a queue": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				Queue(16, 3*time.Second).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"in a queue": {
			Layer: layer.NewStack[Q, R]().Queue(16, 3*time.Second).
				With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless, RetryIf: sent}, classify)).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"in itself": {
			Layer: layer.NewStack[Q, R]().
				With("outer", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				With("inner", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Layer(),
			MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
