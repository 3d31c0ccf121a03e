package grpclayer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

func TestAttemptIsAContext(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	a := &attempt{Context: parent}
	below, stop := context.WithTimeout(a, time.Hour)
	defer stop()
	assert.Same(t, a, attemptOf(below))
	assert.Equal(t, "value", below.Value(key{}))
	assert.Nil(t, attemptOf(t.Context()))
	cancel()
	<-below.Done()
}

// The reason of a refusal is told as long as nothing was sent. What gRPC sent
// before, in a retry of its own, makes it an error like any other.
func TestExplain(t *testing.T) {
	late := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	why := &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "0 of 3 endpoints ready"}
	a := new(attempt)
	assert.Equal(t, late, a.explain(late, nil, nil), "not refused")

	a.refusal.Store(&refusal{why})
	err := a.explain(late, nil, nil)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, late)
	require.EqualError(t, err, "rpc error: code = DeadlineExceeded desc = context deadline exceeded: "+
		"balance: not ready: 0 of 3 endpoints ready")
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	assert.Equal(t, codes.DeadlineExceeded, Code(&layer.Error{Layer: "retry", Err: err}), "also inside of others")

	told := status.Error(codes.Unavailable, "latest balancer error: "+why.Error())
	assert.Equal(t, told.Error(), a.explain(told, nil, nil).Error(), "not twice")

	a.sent.Store(true)
	require.NotErrorIs(t, a.explain(late, nil, nil), layer.ErrNotReady)

	err = a.explain(late, nil, metadata.Pairs(pushbackKey, "7"))
	assert.Equal(t, late.Error(), err.Error())
	require.ErrorIs(t, err, late)
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
}
