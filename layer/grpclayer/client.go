package grpclayer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer"
)

// Client applies a layer to a client's calls. All its calls, unary or streaming, share the
// limits, budgets and breakers of the layer. It is safe for concurrent use.
type Client struct {
	svc     Service
	layered bool       // svc has layers above the innermost service
	live    *balancers // the balancers of its ClientConns; nil unless DialOptions created the Client
}

// NewClient returns a Client that applies l to each call. l may be a whole stack, see
// [layer.Stack.Layer]. If l is nil, calls are unchanged. A Client may serve several
// ClientConns.
func NewClient(l Layer) *Client { return &Client{svc: applied(l, leaf()), layered: l != nil} }

// DialOptions returns options that install both of c's interceptors. If a ClientConn has several
// interceptors, the first one is outermost.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Describe returns the layers of c and their state.
func (c *Client) Describe() layer.Node { return layer.Describe(c.svc) }

// Unary is a [grpc.UnaryClientInterceptor] that sends each call through the layers, which may make
// several attempts. The caller gets the message, the metadata and the peer from the successful
// attempt, or the metadata and the peer from the last one if every attempt fails. An error carries
// the status code that [Code] returns, and the errors in its chain still match.
func (c *Client) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	// Client.Ready must know which ClientConn makes calls.
	c.live.called(cc)
	u := &clientUnary{cc: cc, invoker: invoker, reply: reply}
	// Results are set once, after the last attempt, and not by each attempt.
	u.opts, u.resultOpts = split(opts, isResultOption)
	u.Call = Call{Method: method, Message: req, ctx: ctx, rpc: u}
	rsp, err := c.svc.Call(ctx, &u.Call)
	err = toStatus(ctx, u.deliver(rsp, err))
	// Only now is it known which attempt the caller sees.
	u.setResults(rsp, err)
	return err
}

// clientUnary is a client's unary call, which may be attempted several times, even concurrently.
//
// gRPC decodes a response into a message that its caller provides. An attempt uses the message of the
// interceptor's caller, which avoids a copy, unless another attempt does. Attempts at the same time, such
// as hedges, get messages of their own. All attempts encode the caller's request, so the interceptor
// returns only after the last attempt has returned.
type clientUnary struct {
	Call
	cc         *grpc.ClientConn
	invoker    grpc.UnaryInvoker
	opts       []grpc.CallOption
	resultOpts []grpc.CallOption // options with results that are set once, after the last attempt

	reply     any        // the caller's message for the response
	replyMu   sync.Mutex // held by the attempt that decodes into reply
	replyUsed bool       // reply has a response or was returned to the caller; guarded by replyMu

	last atomic.Pointer[Reply] // the reply of the last attempt

	mu         sync.Mutex
	ended      bool           // no further attempt may start
	concurrent sync.WaitGroup // attempts other than the one that decodes into reply; they start with mu held
}

// try holds all that one attempt of a clientUnary needs, so that it takes a single allocation.
type try struct {
	Reply
	attempt attempt
	room    [8]grpc.CallOption
}

// serve makes one attempt: it sends c through gRPC. A layer such as Retry or Hedge calls it several
// times.
func (u *clientUnary) serve(ctx context.Context, c *Call) (*Reply, error) {
	t := new(try)
	opts := append(t.room[:0], u.opts...)
	// Each attempt has its own metadata; the caller gets that of one of them.
	opts = append(opts, grpc.Header(&t.Header), grpc.Trailer(&t.Trailer))
	if len(u.resultOpts) > 0 {
		t.peer = new(peer.Peer)
		opts = append(opts, grpc.Peer(t.peer))
	}
	t.attempt.Context, t.attempt.method = ctx, c.Method
	err := errNotReturned
	// Deferred, because a codec may panic.
	defer func() { t.attempt.endPick(err) }()
	err = u.invoke(&t.attempt, c, t, opts)
	u.last.Store(&t.Reply)
	if err != nil {
		return nil, t.attempt.explain(err, t.Header, t.Trailer)
	}
	return &t.Reply, nil
}

// errNotReturned is the error with which a pick ends if the attempt panicked. It does not
// count as a failure of the endpoint.
var errNotReturned error = &layer.Error{Layer: "grpc", Kind: layer.ErrNotReady, Reason: "the call did not return"}

// invoke makes the attempt t, and chooses the message into which gRPC decodes the response. It uses the
// caller's message if no other attempt does and none has succeeded with it.
func (u *clientUnary) invoke(ctx context.Context, c *Call, t *try, opts []grpc.CallOption) error {
	// The first attempt decodes into the caller's message, and concurrent ones into their own.
	if u.replyMu.TryLock() {
		defer u.replyMu.Unlock()
		if !u.replyUsed {
			t.Message = u.reply
			err := u.invoker(ctx, c.Method, c.Message, t.Message, u.cc, opts...)
			// After a failure, the next attempt may use the message.
			u.replyUsed = err == nil
			return err
		}
	}
	if !u.begin() {
		return errCallEnded
	}
	defer u.concurrent.Done()
	// The message of the caller is in use.
	t.Message = newMessage(u.reply)
	return u.invoker(ctx, c.Method, c.Message, t.Message, u.cc, opts...)
}

// errCallEnded rejects an attempt that a layer starts after the call has ended.
var errCallEnded error = &layer.Error{Layer: "grpc", Kind: layer.ErrClosed, Reason: "the call has ended"}

// begin counts one more concurrent attempt and returns true. After the end of the call it counts
// nothing and returns false, because nobody would wait for that attempt.
func (u *clientUnary) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.ended {
		u.concurrent.Add(1)
	}
	return !u.ended
}

// deliver ends the call with rsp and err, the layers' result, and returns the error for the
// caller. It first waits for all concurrent attempts, because they may use the caller's messages.
// If err is nil, it then copies the message of rsp into the caller's message, unless both are the
// same.
func (u *clientUnary) deliver(rsp *Reply, err error) error {
	// No further attempt starts, so the wait below ends.
	u.mu.Lock()
	u.ended = true
	u.mu.Unlock()
	// Does not count the attempt that uses the caller's message. The lock below waits for that one.
	u.concurrent.Wait()
	// The response is in the caller's message already.
	if err == nil && rsp != nil && rsp.Message == u.reply {
		return nil
	}
	// Waits for the attempt that decodes into the caller's message, and keeps others from doing so.
	u.replyMu.Lock()
	defer u.replyMu.Unlock()
	u.replyUsed = true
	switch {
	case err != nil:
		return err
	case rsp == nil:
		return errNoReply
	}
	return assign(u.reply, rsp.Message)
}

// setResults stores rsp's header, trailer and peer in the variables of the caller's options
// [grpc.Header], [grpc.Trailer] and [grpc.Peer]. If rsp is nil, it uses the last attempt's reply.
// Then it calls the OnFinish options with err.
func (u *clientUnary) setResults(rsp *Reply, err error) {
	// The usual case: the caller has passed no options such as grpc.Header.
	if len(u.resultOpts) == 0 {
		return
	}
	// The call failed: the last attempt may still have a header and trailer.
	if rsp == nil {
		rsp = u.last.Load()
	}
	// The options that report the end run last, as in gRPC.
	defer reportEnd(u.resultOpts, err)
	if rsp == nil {
		return
	}
	for _, opt := range u.resultOpts {
		switch o := opt.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = rsp.Header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = rsp.Trailer
		case grpc.PeerCallOption:
			if rsp.peer != nil {
				*o.PeerAddr = *rsp.peer
			}
		}
	}
}

// split divides opts. resultOpts are the options for which isResult returns true, which return
// results to the caller once per call. Each attempt gets the rest.
func split(opts []grpc.CallOption, isResult func(grpc.CallOption) bool) (rest, resultOpts []grpc.CallOption) {
	// Usually there is no such option, and opts can be used without a copy.
	if !slices.ContainsFunc(opts, isResult) {
		return opts, nil
	}
	for _, opt := range opts {
		if isResult(opt) {
			resultOpts = append(resultOpts, opt)
		} else {
			rest = append(rest, opt)
		}
	}
	return rest, resultOpts
}

// isResultOption reports whether opt returns a result to the caller, and not only changes the call.
func isResultOption(opt grpc.CallOption) bool {
	switch opt.(type) {
	case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
		return true
	}
	return false
}

// reportEnd calls the OnFinish options in resultOpts with err, the error that the caller gets.
func reportEnd(resultOpts []grpc.CallOption, err error) {
	for _, opt := range resultOpts {
		if o, ok := opt.(grpc.OnFinishCallOption); ok {
			o.OnFinish(err)
		}
	}
}
