package grpclayer

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Pick is what came of a pick: the connection that a call goes to. It ends
// with the call, and with the call's error: see [PickCompletion].
type Pick struct {
	conn      *conn
	attempt   *attempt
	observers []layer.Observer // all there when Pick returns
	room      [4]layer.Observer
	ended     atomic.Bool
}

// Addr is the address of the endpoint.
func (p *Pick) Addr() string { return p.conn.addr }

// PickCompletion is the [layer.Completion] of picks. A pick ends when gRPC
// says that the call is over, with the error that it ended with. One of which
// nothing was sent ends with a refusal, which counts for and against nobody: no
// call was made of it, or the caller's credentials failed, or his message cannot
// be encoded. Data is told the first message of a stream, if it came through a
// [Client].
func PickCompletion(_ context.Context, p *Pick, o layer.Observer) *Pick {
	if p.observers == nil {
		p.observers = p.room[:0]
	}
	p.observers = append(p.observers, o)
	return p
}

// NewEndpointStack returns an empty stack for picks (see [WithEndpointLayer]) that
// knows where they end ([PickCompletion]) and what they mean ([Classify]).
// Options given here come after, and win.
func NewEndpointStack(opts ...layer.Option[*Pick]) layer.Stack[balancer.PickInfo, *Pick] {
	return layer.NewStack[balancer.PickInfo](slices.Concat([]layer.Option[*Pick]{
		layer.WithCompletion(PickCompletion),
		layer.WithClassifier(Classify[*Pick]),
	}, opts)...)
}

func (p *Pick) data() {
	for _, o := range p.observers {
		o.Data(1)
	}
}

// done is called by gRPC when the call is over, with locks held that a panic would
// keep, and possibly on a goroutine of gRPC. So a panic of an observer is dropped.
func (p *Pick) done(info balancer.DoneInfo) {
	if p.ended.Swap(true) {
		return
	}
	if info.BytesSent && p.attempt != nil {
		p.attempt.sent.Store(true)
	}
	_ = panics.Contain(func() { panics.End(p.observers, p.outcome(info)) })
}

// outcome is what the pick ends with.
func (p *Pick) outcome(info balancer.DoneInfo) error {
	switch {
	case !info.BytesSent && info.Err == nil:
		return p.conn.lost
	case !info.BytesSent:
		return p.conn.refusal(layer.ErrNotReady, "nothing was sent", info.Err)
	case info.Err == nil:
		return nil
	case !info.BytesReceived && unsendable(info.Err):
		return p.conn.refusal(layer.ErrNotReady, "the message cannot be sent", info.Err)
	case p.attempt != nil:
		return p.attempt.answered(info.Err, nil, nil)
	}
	return info.Err
}

// unsendable reports whether err is what gRPC says of a message that it cannot
// encode, or may not send. It has nothing but words for that; a server that
// cannot send its reply has the same, but they come with a header.
func unsendable(err error) bool {
	said := status.Convert(err).Message()
	return strings.HasPrefix(said, "grpc: error while marshaling") || strings.HasPrefix(said, "grpc: error while compressing") ||
		strings.HasPrefix(said, "grpc: message too large") || strings.HasPrefix(said, "trying to send message larger than max")
}
