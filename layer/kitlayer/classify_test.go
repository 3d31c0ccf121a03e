package kitlayer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/ratelimit"
	"github.com/go-kit/kit/sd/lb" //nolint:depguard // only its Retry
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/kitlayer"
)

// A gRPC status is classified as by grpclayer, wherever it is in the chain.
func TestClassifyGRPCStatus(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := status.Error(code, "x")
		want := grpclayer.Classify(layer.Outcome[string]{Err: err})
		for _, err := range []error{err, fmt.Errorf("wrapped: %w", err), errors.Join(errors.New("other"), err)} {
			require.Equal(t, want, kitlayer.Classify(layer.Outcome[string]{Err: err}), "%v: %v", code, err)
		}
	}
	require.Equal(t, layer.Retryable, kitlayer.Classify(layer.Outcome[string]{Err: strange{}}))
	require.Equal(t, layer.Retryable, kitlayer.Classify(layer.Outcome[string]{Err: errors.New("connection reset")}))
}

// strange has a method with the name and another type.
type strange struct{}

func (strange) Error() string             { return "strange" }
func (strange) GRPCStatus() (string, int) { return "", 0 }

// The errors of go-kit's limiter and of gobreaker are rejections, so that a balancer tries another instance and does
// not count a failure.
func TestRejections(t *testing.T) {
	limited := ratelimit.NewErroringLimiter(never{})(func(context.Context, any) (any, error) { return "sent", nil })
	for _, e := range []endpoint.Endpoint{
		limited,
		func(context.Context, any) (any, error) { return nil, errors.New("circuit breaker is open") },
		func(context.Context, any) (any, error) { return nil, errors.New("too many requests") },
	} {
		_, err := kitlayer.Service[string, string](e).Call(t.Context(), "x")
		require.ErrorIs(t, err, layer.ErrNotReady)
	}
	_, err := kitlayer.Service[string, string](limited).Call(t.Context(), "x")
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	_, err = kitlayer.Service[string, string](func(context.Context, any) (any, error) {
		return nil, fmt.Errorf("the server: %w", errors.New("too many requests"))
	}).Call(t.Context(), "x")
	require.NotErrorIs(t, err, layer.ErrNotReady, "another error with this text in its chain")
}

type never struct{}

func (never) Allow() bool { return false }

// go-kit's own Retry works above a service.
func TestBalancer(t *testing.T) {
	calls := 0
	svc := kitlayer.Service[string, string](func(_ context.Context, name any) (any, error) {
		if calls++; calls < 3 {
			return nil, errors.New("connection reset")
		}
		return fmt.Sprint("hello ", name), nil
	})
	rsp, err := lb.Retry(3, time.Minute, kitlayer.Balancer(svc))(t.Context(), "kit")
	require.NoError(t, err)
	require.Equal(t, "hello kit", rsp)
	full := layer.Limit[string, string](1)(unready{})
	_, err = kitlayer.Balancer(full).Endpoint()
	require.ErrorIs(t, err, lb.ErrNoEndpoints)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.Panics(t, func() { kitlayer.Balancer[string, string](nil) })
}

// unready is a service that is never ready.
type unready struct{}

func (unready) Ready(context.Context) error { return layer.ErrNotReady }

func (unready) Call(context.Context, string) (string, error) { return "", layer.ErrNotReady }
