package tcplayer

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/layer"
)

// ForwardOption sets how [Forward] works.
type ForwardOption interface{ apply(o *forward) }

type forwardOption func(*forward)

func (f forwardOption) apply(o *forward) { f(o) }

// WithIdleTimeout ends a connection over which no Read and no Write was completed
// for d, in either direction. A d of 0 or less, the default, means no limit. The
// limit has its price: the kernel cannot copy by itself then. Writes are of up
// to 32 KiB, so d should be longer than the slowest reader takes for that.
func WithIdleTimeout(d time.Duration) ForwardOption {
	return forwardOption(func(o *forward) { o.idle = max(d, 0) })
}

// Forward is the [Server] that connects each accepted connection with one of
// to's, and copies both ways. Where one side ends its direction, so does the
// other (half-close); it is over when both directions ended. A side that cannot
// close one direction alone ends both.
//
// Admission: that of to. A refusal leaves the connection open and unread.
//
// Cancellation: to is called with ctx, which lives until the connection is over.
// When ctx ends, both sides are reset.
//
// Body: a connection that was admitted is closed when Call returns. If either
// side broke, TLS that did not say its end included, or there is any other error,
// both sides are reset.
//
// Errors: what to returned; else a [layer.Error] that names the server, says in
// which direction copying failed, or is of kind [layer.ErrIdleTimeout]. The
// Traffic is right with an error, too.
//
// Cost: one goroutine beside that of Call. Between two TCP connections on Linux
// bytes are moved by the kernel (splice). A nil to panics.
func Forward(to Service, opts ...ForwardOption) Server {
	notNil(to)
	f := &forward{to: to}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(f)
		}
	}
	return f
}

type forward struct {
	to   Service
	idle time.Duration
}

// Ready is that of the service which makes connections.
func (f *forward) Ready(ctx context.Context) error { return f.to.Ready(ctx) }

// Call forwards one connection until it is over.
func (f *forward) Call(ctx context.Context, client net.Conn) (ByteCount, error) {
	if ctx.Err() != nil {
		return ByteCount{}, &layer.Error{
			Layer: "forward", Kind: layer.ErrNotReady, Reason: left.Why(ctx), Err: context.Cause(ctx),
		}
	}
	server, err := f.to.Call(ctx, requestOf(client))
	switch {
	case errors.Is(err, layer.ErrNotReady):
		return ByteCount{}, err
	case err != nil:
		reset(client)
		return ByteCount{}, err
	}
	p := &pair{client: client, server: server, idle: f.idle}
	return p.join(ctx)
}

// Describe shows the service that makes connections as what this one made.
func (f *forward) Describe() layer.Node {
	n := layer.Node{Name: "forward", Children: []layer.Node{layer.Describe(f.to)}}
	if f.idle > 0 {
		n.State = layer.State{{Key: "idle_timeout", Value: f.idle}}
	}
	return n
}
