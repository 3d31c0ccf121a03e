package grpclayer

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer"
)

// clientUnary is a unary call of a client, which may be tried several times.
//
// gRPC decodes a response into a message that the caller owns. One try at a
// time has the use of that; tries beside it, as hedges are, have messages of
// their own. They too encode the caller's request, so the interceptor returns
// when no try is under way any more.
type clientUnary struct {
	Call
	cc      *grpc.ClientConn
	invoker grpc.UnaryInvoker
	opts    []grpc.CallOption
	asked   []grpc.CallOption // answered once, when it is known what with

	reply any
	using sync.Mutex // held by the try that decodes into reply
	full  bool       // reply has a response, or is the caller's again; guarded by using

	last atomic.Pointer[Reply] // of the try that ended last

	mu     sync.Mutex
	over   bool           // no try may begin any more
	beside sync.WaitGroup // tries beside the one that decodes into reply; they begin with mu
}

// try is all that one try needs, in one piece.
type try struct {
	Reply
	attempt attempt
	room    [8]grpc.CallOption
}

func (u *clientUnary) serve(ctx context.Context, c *Call) (*Reply, error) {
	t := new(try)
	opts := append(t.room[:0], u.opts...)
	opts = append(opts, grpc.Header(&t.Header), grpc.Trailer(&t.Trailer))
	if len(u.asked) > 0 {
		t.peer = new(peer.Peer)
		opts = append(opts, grpc.Peer(t.peer))
	}
	t.attempt.Context, t.attempt.method = ctx, c.Method
	err := errNotReturned
	defer func() { t.attempt.over(err) }()
	err = u.invoke(&t.attempt, c, t, opts)
	u.last.Store(&t.Reply)
	if err != nil {
		return nil, t.attempt.explain(err, t.Header, t.Trailer)
	}
	return &t.Reply, nil
}

// errNotReturned is what the pick of a try ends with that panicked: it says nothing of
// the endpoint.
var errNotReturned error = &layer.Error{Layer: "grpc", Kind: layer.ErrNotReady, Reason: "the call did not return"}

func (u *clientUnary) invoke(ctx context.Context, c *Call, t *try, opts []grpc.CallOption) error {
	if u.using.TryLock() {
		defer u.using.Unlock()
		if !u.full {
			t.Message = u.reply
			err := u.invoker(ctx, c.Method, c.Message, t.Message, u.cc, opts...)
			u.full = err == nil
			return err
		}
	}
	if !u.begin() {
		return errOver
	}
	defer u.beside.Done()
	t.Message = fresh(u.reply)
	return u.invoker(ctx, c.Method, c.Message, t.Message, u.cc, opts...)
}

// errOver is the refusal of a try that came too late to begin.
var errOver error = &layer.Error{Layer: "grpc", Kind: layer.ErrClosed, Reason: "the call is over"}

// begin reports whether a try beside another may begin.
func (u *clientUnary) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		u.beside.Add(1)
	}
	return !u.over
}

// deliver sees that the caller's message has the reply, and that no try that
// was given up still writes to it or reads the request. Who gives up a try
// cancels it, so that the wait is short.
func (u *clientUnary) deliver(rsp *Reply, err error) error {
	u.mu.Lock()
	u.over = true
	u.mu.Unlock()
	u.beside.Wait()
	if err == nil && rsp != nil && rsp.Message == u.reply {
		return nil
	}
	u.using.Lock()
	defer u.using.Unlock()
	u.full = true
	switch {
	case err != nil:
		return err
	case rsp == nil:
		return errNoReply
	}
	return assign(u.reply, rsp.Message)
}

// answer fills in what the caller's options asked for.
func (u *clientUnary) answer(rsp *Reply, err error) {
	if len(u.asked) == 0 {
		return
	}
	if rsp == nil {
		rsp = u.last.Load()
	}
	for _, opt := range u.asked {
		switch o := opt.(type) {
		case grpc.OnFinishCallOption:
			o.OnFinish(err)
		case grpc.HeaderCallOption:
			if rsp != nil {
				*o.HeaderAddr = rsp.Header
			}
		case grpc.TrailerCallOption:
			if rsp != nil {
				*o.TrailerAddr = rsp.Trailer
			}
		case grpc.PeerCallOption:
			if rsp != nil && rsp.peer != nil {
				*o.PeerAddr = *rsp.peer
			}
		}
	}
}

// split takes the options apart that ask for something: every try would
// answer them.
func split(opts []grpc.CallOption, asks func(grpc.CallOption) bool) (rest, asked []grpc.CallOption) {
	for i, opt := range opts {
		if !asks(opt) {
			if asked != nil {
				rest = append(rest, opt)
			}
			continue
		}
		if asked == nil {
			rest = append(rest, opts[:i]...)
		}
		asked = append(asked, opt)
	}
	if asked == nil {
		return opts, nil
	}
	return rest, asked
}

func asks(opt grpc.CallOption) bool {
	switch opt.(type) {
	case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
		return true
	}
	return false
}
