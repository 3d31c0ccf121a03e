package grpclayer

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
)

// Client puts a layer around the calls of a client, unary and streams alike:
// they share its limits, budgets and breakers. It is safe for concurrent use.
type Client struct {
	svc     Service
	layered bool       // svc has layers
	live    *balancers // that it may ask; nil: none
}

// NewClient applies l, which may be a whole stack (Stack.Layer). A nil layer
// changes nothing. A Client may serve several connections.
func NewClient(l Layer) *Client { return &Client{svc: applied(l, leaf()), layered: l != nil} }

// UnaryClientInterceptor is [NewClient] for unary calls alone.
func UnaryClientInterceptor(l Layer) grpc.UnaryClientInterceptor { return NewClient(l).Unary }

// StreamClientInterceptor is [NewClient] for streams alone.
func StreamClientInterceptor(l Layer) grpc.StreamClientInterceptor { return NewClient(l).Stream }

// DialOptions has both kinds of calls go through the layers. They come in the
// order in which options are given: first is outermost.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Describe shows the layers and their state.
func (c *Client) Describe() layer.Node { return layer.Describe(c.svc) }

// Unary is a [grpc.UnaryClientInterceptor]. A layer may send the call again,
// also while it is under way; the caller gets the message, the metadata and
// the peer of the try that won, or else of the last one. Its errors have the
// code that [Code] gives them, and match what they matched (see [errors.Is]).
func (c *Client) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	c.live.called(cc)
	u := &clientUnary{cc: cc, invoker: invoker, reply: reply}
	u.opts, u.asked = split(opts, asks)
	u.Call = Call{Method: method, Message: req, ctx: ctx, rpc: u}
	rsp, err := c.svc.Call(ctx, &u.Call)
	err = toStatus(ctx, u.deliver(rsp, err))
	u.answer(rsp, err)
	return err
}

// Stream is a [grpc.StreamClientInterceptor]. A layer's part of a stream, its
// slot for example, lasts until the stream ended: see [Completion]. Where a layer's
// limit ends it, RecvMsg and SendMsg fail with DEADLINE_EXCEEDED and that reason.
//
// A Retry opens a stream again that could not be opened. A stream of responses to a
// single request is repeated too if it fails before its header, which comes with the
// first message at the latest, and if the Retry would repeat a unary call that failed
// so: the method is safe ([Replayer]), the class says so, and the budget allows it. The
// limit of a try counts to the header then, and SendMsg returns nil: what is wrong
// with the request is returned by RecvMsg. Client streams and bidirectional ones are
// not repeated once they are open.
func (c *Client) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	c.live.called(cc)
	s := &clientStream{desc: desc, cc: cc, streamer: streamer}
	s.opts, s.asked = split(opts, asksForTheEnd)
	s.Call = Call{
		Method: method, ctx: ctx, rpc: s,
		ClientStreams: desc.ClientStreams, ServerStreams: desc.ServerStreams,
	}
	if c.layered && desc.ServerStreams && !desc.ClientStreams {
		return repeat(ctx, s, c.svc)
	}
	opened, err := s.open(ctx, c.svc)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	return opened, nil
}

var errNoStream = errors.New("grpclayer: a layer answered a stream with something else")

type clientStream struct {
	Call
	desc     *grpc.StreamDesc
	cc       *grpc.ClientConn
	streamer grpc.Streamer
	opts     []grpc.CallOption
	asked    []grpc.CallOption // told once, of the stream that the caller has
	repeated *repeatedStream   // nil: it is not sent again once it is open
}

// open has the layers open the stream.
func (s *clientStream) open(ctx context.Context, svc Service) (*stream, error) {
	rsp, err := svc.Call(ctx, &s.Call)
	switch {
	case err != nil:
		return nil, err
	case rsp == nil || rsp.stream == nil:
		return nil, errNoStream
	}
	rsp.stream.tell(s.asked)
	return rsp.stream, nil
}

// failed is what the caller has of an error of the layers.
func (s *clientStream) failed(ctx context.Context, err error) error {
	if err != errNoStream { //nolint:errorlint // it is made here
		err = toStatus(ctx, err)
	}
	told(s.asked, err)
	return err
}

func (s *clientStream) serve(ctx context.Context, c *Call) (*Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	opening := &stream{attempt: attempt{Context: ctx, method: c.Method}, cancel: cancel, single: !s.desc.ServerStreams}
	opts := append(opening.room[:0], s.opts...)
	opts = append(opts, grpc.OnFinish(opening.finished))
	err := errNotReturned
	defer func() { // where the streamer panics, as by credentials of the call
		if err != nil {
			cancel()
			opening.attempt.over(err)
		}
	}()
	opened, err := s.streamer(&opening.attempt, s.desc, s.cc, c.Method, opts...)
	if err != nil {
		return nil, opening.attempt.explain(err, nil, nil)
	}
	opening.ClientStream = opened
	if s.repeated != nil && layer.WillRetry(ctx) {
		return s.repeated.try(opening)
	}
	return &Reply{stream: opening}, nil
}

func asksForTheEnd(opt grpc.CallOption) bool {
	_, ok := opt.(grpc.OnFinishCallOption)
	return ok
}

// told tells those who asked how the stream ended.
func told(asked []grpc.CallOption, err error) {
	for _, opt := range asked {
		if o, ok := opt.(grpc.OnFinishCallOption); ok {
			o.OnFinish(err)
		}
	}
}
