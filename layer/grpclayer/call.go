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

// Call is one RPC as layers see it, on a client or on a server. It is made by
// an interceptor; a layer that wants another message makes one from it by
// [Call.WithMessage].
type Call struct {
	Method  string // "/package.Service/Method"
	Message any    // the request of a unary call, not to be changed; nil for a stream

	ClientStreams bool // the client sends a stream of messages
	ServerStreams bool // the server sends a stream of messages

	incoming bool            // on a server
	ctx      context.Context //nolint:containedctx // the RPC's, which has its metadata; only that is read
	rpc      rpc
}

// rpc is the part of a call that sends or handles it.
type rpc interface {
	serve(ctx context.Context, c *Call) (*Reply, error)
}

// Streams reports whether the call is a stream in either direction.
func (c *Call) Streams() bool { return c.ClientStreams || c.ServerStreams }

// WithMessage returns the same call with another request message, which must
// be one that the method takes. The call itself is not changed.
func (c *Call) WithMessage(m any) *Call {
	other := *c
	other.Message = m
	return &other
}

// Header returns a copy of the metadata of the call, as the interceptor saw it,
// or nil.
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

// Get returns the first value of a field of the Header, or "". On a server it
// copies nothing else.
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

// Reply is what came of a [Call].
type Reply struct {
	Message any // the response of a unary call; nil for a stream

	// Header and Trailer are what came with the response of a unary call, on a
	// client.
	Header, Trailer metadata.MD

	stream *stream    // of a client; nil where the reply is over
	status codes.Code // that it ended with
	peer   *peer.Peer // if the caller asked for it
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

// NewStack returns an empty stack that knows gRPC: where a reply ends
// ([Completion]), what it means ([Classify]) and how a call is sent again
// ([Replayer], no method being idempotent). Options given here come after, and
// win.
func NewStack(opts ...layer.Option[*Reply]) Stack {
	return layer.NewStack[*Call](slices.Concat([]layer.Option[*Reply]{
		layer.WithCompletion(Completion),
		layer.WithClassifier(Classify[*Reply]),
		layer.WithReplayer[*Call, *Reply](Replayer{}),
	}, opts)...)
}

var errNotACall = errors.New("grpclayer: the call was not made by an interceptor: use Call.WithMessage")

// leaf is where calls leave the layers. It refuses one whose context is done.
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
