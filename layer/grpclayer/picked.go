package grpclayer

import (
	"context"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/internal/unwind"
	"github.com/gotower/gotower/layer"
)

// Picked is what came of a pick: the connection that a call goes to. It ends
// with the call, and with the call's error: see [PickedCompletion].
type Picked struct {
	conn      *conn
	attempt   *attempt
	observers []layer.Observer // all there when Pick returns
	room      [4]layer.Observer
	ended     atomic.Bool
}

// Addr is the address of the endpoint.
func (p *Picked) Addr() string { return p.conn.addr }

// PickedCompletion is the [layer.Completion] of picks. A pick ends when gRPC
// says that the call is over, with the error that it ended with; one that no
// call was made of ends with a refusal, which counts for and against nobody.
// Data is told the first message of a stream, if it came through a [Client].
func PickedCompletion(_ context.Context, p *Picked, o layer.Observer) *Picked {
	if p.observers == nil {
		p.observers = p.room[:0]
	}
	p.observers = append(p.observers, o)
	return p
}

// NewEndpointStack returns an empty stack for picks (see [EndpointLayer]) that
// knows where they end ([PickedCompletion]) and what they mean ([Classify]).
// Options given here come after, and win.
func NewEndpointStack(opts ...layer.Option[*Picked]) layer.Stack[balancer.PickInfo, *Picked] {
	return layer.NewStack[balancer.PickInfo](slices.Concat([]layer.Option[*Picked]{
		layer.Until(PickedCompletion),
		layer.Classify(Classify[*Picked]),
	}, opts)...)
}

func (p *Picked) data() {
	for _, o := range p.observers {
		o.Data(1)
	}
}

// done is called by gRPC when the call is over.
func (p *Picked) done(info balancer.DoneInfo) {
	if p.ended.Swap(true) {
		return
	}
	err := info.Err
	if info.BytesSent && p.attempt != nil {
		p.attempt.sent.Store(true)
	}
	if err == nil && !info.BytesSent && !info.BytesReceived {
		err = p.conn.lost
	}
	unwind.End(p.observers, err)
}
