package grpclayer

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer"
)

// Call is one RPC of a client or a server, as the request of layers. An
// interceptor makes it. A layer changes its message by [Call.WithMessage].
type Call struct {
	Method  string // "/package.Service/Method"
	Message any    // the request of a unary call, which must not be changed; nil for a stream

	ClientStreams bool // the client sends a stream of messages
	ServerStreams bool // the server sends a stream of messages

	incoming bool            // on a server
	ctx      context.Context //nolint:containedctx // has the metadata of the RPC
	rpc      rpc
}

// rpc sends a call on a client, or handles it on a server.
type rpc interface {
	serve(ctx context.Context, c *Call) (*Reply, error)
}

// Streams reports whether the call is a stream in either direction.
func (c *Call) Streams() bool { return c.ClientStreams || c.ServerStreams }

// WithMessage returns a copy of the call with another request message of the method.
func (c *Call) WithMessage(m any) *Call {
	other := *c
	other.Message = m
	return &other
}

// Header returns a copy of the metadata of the call, or nil.
func (c *Call) Header() metadata.MD {
	if c.ctx == nil {
		return nil
	}
	if c.incoming {
		md, _ := metadata.FromIncomingContext(c.ctx)
		return md
	}
	md, _ := metadata.FromOutgoingContext(c.ctx)
	return md
}

// Get returns the first value of a header, or "".
func (c *Call) Get(name string) string {
	var values []string
	switch {
	case c.ctx == nil:
	case c.incoming:
		values = metadata.ValueFromIncomingContext(c.ctx, name)
	default:
		values = c.Header().Get(name)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Reply is the response to a [Call].
type Reply struct {
	Message any // the response of a unary call; nil for a stream

	// Header and Trailer belong to the response of a client's unary call.
	Header, Trailer metadata.MD

	stream *stream    // of a client; nil if the reply has ended
	status codes.Code // of the end
	peer   *peer.Peer // if a call option requests it
}

// Service, Layer and Stack are those of package layer, for gRPC.
type (
	Service = layer.Service[*Call, *Reply]
	Layer   = layer.Layer[*Call, *Reply]
	Stack   = layer.Stack[*Call, *Reply]
)

// The policies of package layer, for gRPC.
type (
	RetryPolicy    = layer.RetryPolicy[*Call, *Reply]
	HedgePolicy    = layer.HedgePolicy[*Call]
	FallbackPolicy = layer.FallbackPolicy[*Call, *Reply]
	FaultPolicy    = layer.FaultPolicy[*Call]
)

// NewStack returns an empty stack for gRPC with [Completion], [Classify] and a
// [Replayer] for which no method is idempotent. Later options override these.
func NewStack(opts ...layer.Option[*Reply]) Stack {
	return layer.NewStack[*Call](slices.Concat([]layer.Option[*Reply]{
		layer.WithCompletion(Completion),
		layer.WithClassifier(Classify[*Reply]),
		layer.WithReplayer[*Call, *Reply](Replayer{}),
	}, opts)...)
}

var errNotACall = errors.New("grpclayer: call not made by an interceptor; use Call.WithMessage")

// leaf returns the innermost service. It rejects a call whose context has ended.
func leaf() Service {
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		if c == nil || c.rpc == nil {
			return nil, errNotACall
		}
		return c.rpc.serve(ctx, c)
	})
}

func applied(l Layer, leaf Service) Service {
	if l == nil {
		return leaf
	}
	return l(leaf)
}
