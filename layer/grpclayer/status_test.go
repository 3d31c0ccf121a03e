package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

var errPlain = errors.New("plain")

func refused(name string, after time.Duration, cause error) error {
	return &layer.Error{Layer: name, Kind: layer.ErrNotReady, RetryAfter: after, Err: cause}
}

func TestCode(t *testing.T) {
	peer := status.Error(codes.DataLoss, "lost")
	for _, tt := range []struct {
		name string
		err  error
		want codes.Code
	}{
		{"none", nil, codes.OK},
		{"fail-fast", &layer.Error{Layer: "queue", Kind: layer.ErrFailFast}, codes.DeadlineExceeded},
		{"fail-fast in a refusal", refused("balance", 0, layer.ErrFailFast), codes.DeadlineExceeded},
		{"timeout over a peer's status", &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout, Err: peer}, codes.DeadlineExceeded},
		{"idle timeout", layer.ErrIdleTimeout, codes.DeadlineExceeded},
		{"rate limit", refused("rate", time.Second, nil), codes.ResourceExhausted},
		{"keyed rate limit", refused("rate_by", time.Second, nil), codes.ResourceExhausted},
		{"a connection that is down", refused("reconnect", time.Second, errPlain), codes.Unavailable},
		{"breaker with a time", refused("breaker", time.Second, nil), codes.Unavailable},
		{"balancer over a rate limit", refused("balance", 0, refused("rate", time.Second, nil)), codes.ResourceExhausted},
		{"limit", refused("limit", 0, nil), codes.Unavailable},
		{"rejected on a retry", &layer.Error{Layer: "retry", Kind: layer.ErrRetryRejected, Err: errPlain}, codes.Unavailable},
		{"closed", layer.ErrClosed, codes.Unavailable},
		{"refusal over a peer's status", refused("breaker", 0, peer), codes.Unavailable},
		{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded},
		{"expired on arrival", refused("deadline", 0, context.DeadlineExceeded), codes.DeadlineExceeded},
		{"no route", &layer.Error{Layer: "router", Kind: layer.ErrNoRoute}, codes.NotFound},
		{"cancelled", refused("func", 0, context.Canceled), codes.Canceled},
		{"a peer's status", peer, codes.DataLoss},
		{"a peer's status, wrapped", fmt.Errorf("around: %w", peer), codes.DataLoss},
		{"injected", layer.ErrInjected, codes.Unknown},
		{"plain", errPlain, codes.Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, Code(tt.err))
			err := toStatus(t.Context(), tt.err)
			assert.Equal(t, tt.want, status.Code(err))
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err, "inside the process it stays what it was")
				assert.Equal(t, tt.err.Error(), err.Error())
			}
		})
	}
}

func TestStatusErrorsUnchanged(t *testing.T) {
	peer := status.Error(codes.DataLoss, "lost")
	assert.Equal(t, peer, toStatus(t.Context(), peer))
	assert.Equal(t, errPlain, toStatus(t.Context(), errPlain))
	require.NoError(t, toStatus(t.Context(), nil))
}

// The details of a status of the server pass the layers.
func TestStatusDetails(t *testing.T) {
	st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&pb.SimpleRequest{ResponseSize: 7})
	require.NoError(t, err)
	got := status.Convert(toStatus(t.Context(), &layer.Error{Layer: "retry", Err: st.Err()}))
	assert.Equal(t, codes.FailedPrecondition, got.Code())
	require.Len(t, got.Details(), 1)
	assert.Contains(t, got.Message(), "retry")
}

// A cause without a status is CANCELLED.
func TestStatusCanceledWithCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errPlain)
	err := toStatus(ctx, refused("limit", 0, errPlain))
	assert.Equal(t, codes.Canceled, status.Code(err))
	require.ErrorIs(t, err, errPlain)

	assert.Equal(t, codes.Unavailable, status.Code(toStatus(ctx, refused("limit", 0, nil))), "refused for another reason")
}

func TestClassify(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := layer.Success
		switch code {
		case codes.Unavailable:
			want = layer.Retryable
		case codes.ResourceExhausted:
			want = layer.Throttled
		case codes.Unknown, codes.DeadlineExceeded, codes.PermissionDenied, codes.Internal, codes.DataLoss:
			want = layer.Failure
		}
		err := status.Error(code, "")
		assert.Equal(t, want, Classify(layer.Outcome[*Reply]{Err: err, Ended: err == nil}), code)
	}
	assert.Equal(t, layer.Retryable, Classify(layer.Outcome[*Reply]{Err: layer.ErrAttemptTimeout}))
	assert.Equal(t, layer.Failure, Classify(layer.Outcome[*Reply]{Err: layer.ErrTimeout}))
	assert.Equal(t, layer.Failure, Classify(layer.Outcome[*Pick]{Err: errPlain}))
}

func TestPushback(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   time.Duration
		ok     bool
	}{
		{nil, 0, false},
		{[]string{"0"}, 0, true},
		{[]string{"1500"}, 1500 * time.Millisecond, true},
		{[]string{"2147483647"}, maxPushback, true},
		{[]string{"99999999999999999999"}, -1, true},
		{[]string{"-1"}, -1, true},
		{[]string{"soon"}, -1, true},
		{[]string{""}, -1, true},
		{[]string{"1", "2"}, -1, true},
	} {
		err := fmt.Errorf("around: %w", &callError{err: errPlain, pushback: tt.values})
		after, ok := GRPC{}.RetryAfter(nil, err)
		assert.Equal(t, tt.want, after, "%q", tt.values)
		assert.Equal(t, tt.ok, ok, "%q", tt.values)
	}
	_, ok := GRPC{}.RetryAfter(nil, errPlain)
	assert.False(t, ok)

	assert.Equal(t, []string{"2"}, pushback(refused("rate", 1001*time.Microsecond, nil)).Get(pushbackKey), "rounded up")
	assert.Nil(t, pushback(errPlain))
}

func TestIdempotent(t *testing.T) {
	c := &Call{Method: "/s/Get"}
	assert.False(t, GRPC{}.Idempotent(c))
	assert.True(t, GRPC{IsIdempotent: func(c *Call) bool { return c.Method == "/s/Get" }}.Idempotent(c))
	assert.Nil(t, GRPC{}.Replay(c, 1))
}

func FuzzPushback(f *testing.F) {
	f.Add("0")
	f.Add("-7")
	f.Add("18446744073709551616")
	f.Fuzz(func(t *testing.T, text string) {
		after, ok := GRPC{}.RetryAfter(nil, &callError{err: errPlain, pushback: []string{text}})
		if !ok || after < -1 || after > maxPushback {
			t.Errorf("%q: %v, %v", text, after, ok)
		}
	})
}
