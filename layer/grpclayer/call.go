package grpclayer

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer"
)

// Call is one RPC on a client or a server. It is the request type of the layers for gRPC.
// An interceptor creates it. A layer changes its message by [Call.WithMessage].
type Call struct {
	Method  string // "/package.Service/Method"
	Message any    // the request message of a unary call, which must not be modified; nil for a stream

	ClientStreams bool // the client sends a stream of messages
	ServerStreams bool // the server sends a stream of messages

	incoming bool            // the call is on a server
	ctx      context.Context //nolint:containedctx // the context of the RPC, with its metadata
	rpc      rpc
}

// rpc is what remains to be done with a call below all layers. On a client, serve sends the call
// through gRPC. On a server, it runs the handler.
type rpc interface {
	serve(ctx context.Context, c *Call) (*Reply, error)
}

// Streams reports whether the call is a stream in either direction.
func (c *Call) Streams() bool { return c.ClientStreams || c.ServerStreams }

// WithMessage returns a copy of the call with m as its request message.
func (c *Call) WithMessage(m any) *Call {
	other := *c
	other.Message = m
	return &other
}

// Header returns a copy of the call's metadata. Without metadata it returns nil or an empty map.
func (c *Call) Header() metadata.MD {
	if c.ctx == nil {
		return nil
	}
	// Incoming and outgoing metadata are different values of the context.
	if c.incoming {
		md, _ := metadata.FromIncomingContext(c.ctx)
		return md
	}
	md, _ := metadata.FromOutgoingContext(c.ctx)
	return md
}

// Get returns the first value of the metadata field with the given name, or "" if there is none.
func (c *Call) Get(name string) string {
	var values []string
	switch {
	case c.ctx == nil:
	case c.incoming:
		// Cheaper than Header, which copies all metadata.
		values = metadata.ValueFromIncomingContext(c.ctx, name)
	default:
		values = c.Header().Get(name)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Reply is the response to a [Call]. It is the response type of the layers for gRPC.
type Reply struct {
	Message any // the response of a unary call; nil for a stream

	// Header and Trailer are the response's metadata. On a client they are set for a unary call,
	// and nil for a stream. On a server they are nil, except for a stream that
	// [GRPC.OnResponseStart] observes.
	Header, Trailer metadata.MD

	stream *stream    // the stream of a streaming call on a client; nil for any other reply
	status codes.Code // the status code with which the call ended
	peer   *peer.Peer // the server of the call; nil unless a call option requests results
}

// Service, Layer and Stack are the types of package layer for *Call and *Reply.
type (
	Service = layer.Service[*Call, *Reply]
	Layer   = layer.Layer[*Call, *Reply]
	Stack   = layer.Stack[*Call, *Reply]
)

// RetryPolicy and the other types are the policies of package layer, instantiated for gRPC, so that you
// need not write the type arguments.
type (
	RetryPolicy    = layer.RetryPolicy[*Call, *Reply]
	HedgePolicy    = layer.HedgePolicy[*Call]
	FallbackPolicy = layer.FallbackPolicy[*Call, *Reply]
	FaultPolicy    = layer.FaultPolicy[*Call]
	MirrorPolicy   = layer.MirrorPolicy[*Call]
)

// NewStack returns a stack without layers for gRPC. Its layers read calls and replies through the zero
// [GRPC], which treats no method as idempotent, unless opts replace it or parts of it.
func NewStack(opts ...layer.Option[*Reply]) Stack {
	return layer.NewStack[*Call](append([]layer.Option[*Reply]{layer.WithProtocol(GRPC{})}, opts...)...)
}

// errNotACall is the error for a Call that a program made by itself.
var errNotACall = errors.New("grpclayer: call not made by an interceptor; use Call.WithMessage")

// leaf returns the service below all layers. On a client it sends a call, and on a server it runs
// the handler. It rejects a call if the call context has ended.
func leaf() Service {
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		if c == nil || c.rpc == nil {
			return nil, errNotACall
		}
		return c.rpc.serve(ctx, c)
	})
}

// applied returns leaf with the layer l around it, or leaf itself if l is nil.
func applied(l Layer, leaf Service) Service {
	if l == nil {
		return leaf
	}
	return l(leaf)
}
