package grpclayer

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
)

type (
	pick     = balancer.PickInfo
	doneInfo = balancer.DoneInfo
)

// shutting is a minimal breaker.
type shutting struct {
	layer.Service[pick, *Pick]
	open    atomic.Bool
	changed notify.Broadcast
}

func (s *shutting) Ready(ctx context.Context) error {
	if err := s.changed.Wait(ctx, func() bool { return !s.open.Load() }); err != nil {
		return &layer.Error{Layer: "breaker", Kind: err, Reason: "open"}
	}
	return s.Service.Ready(ctx)
}

func (s *shutting) Call(ctx context.Context, p pick) (*Pick, error) {
	if s.open.Load() {
		return nil, &layer.Error{Layer: "breaker", Kind: layer.ErrNotReady, Reason: "open"}
	}
	rsp, err := s.Service.Call(ctx, p)
	if err != nil {
		return nil, err
	}
	return PickCompletion(ctx, rsp, s), nil
}

func (s *shutting) Data(int) {}

func (s *shutting) End(err error) {
	if Classify(layer.Outcome[*Pick]{Err: err, Ended: err == nil}).IsFailure() && !s.open.Swap(true) {
		time.AfterFunc(time.Second, func() {
			s.open.Store(false)
			s.changed.Wake()
		})
	}
}
