package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/gotower/gotower/layer"
)

// DetectOption sets how [Detect], [DetectTLS] and [ProxyProtocol] look at
// connections.
type DetectOption interface{ apply(o *detectOptions) }

type detectOptions struct {
	timeout time.Duration
	silent  Protocol
	skip    func(ctx context.Context, conn net.Conn) bool
	meters  *detectMeters // nil: nothing is written
}

type detectOption func(*detectOptions)

func (f detectOption) apply(o *detectOptions) { f(o) }

// WithDetectTimeout is how long to wait for what a client says first. The default
// is 10 s, as in linkerd's proxy; a d of 0 or less means that too.
func WithDetectTimeout(d time.Duration) DetectOption {
	return detectOption(func(o *detectOptions) { o.timeout = d })
}

// WithSilentProtocol is what a client is taken for that says nothing in time, by [Detect].
// The default is Opaque.
func WithSilentProtocol(p Protocol) DetectOption {
	return detectOption(func(o *detectOptions) { o.silent = p })
}

// WithSkipDetect says of which connections nothing is to be looked at, such as those
// to ports where the server speaks first; see [OriginalDst]. They are opaque, in
// clear, and without a header of the PROXY protocol. It is called once for each
// connection and must return at once. The default, and nil, is of none.
func WithSkipDetect(skip func(ctx context.Context, conn net.Conn) bool) DetectOption {
	return detectOption(func(o *detectOptions) { o.skip = skip })
}

const defaultDetectTimeout = 10 * time.Second

func newDetectOptions(opts []DetectOption) detectOptions {
	var o detectOptions
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.timeout <= 0 {
		o.timeout = defaultDetectTimeout
	}
	return o
}

func (o *detectOptions) skips(ctx context.Context, conn net.Conn) bool {
	return o.skip != nil && o.skip(ctx, conn)
}

// unheard ends a connection whose client has not said enough: err is what came
// instead.
func (o *detectOptions) unheard(conn net.Conn, at, reason string, err error) error {
	e := &layer.Error{Layer: at, Reason: reason, Err: err}
	switch {
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		e.Err = io.ErrUnexpectedEOF
		return e
	case lateness(err):
		e.Kind, e.Waited = layer.ErrTimeout, o.timeout
	}
	reset(conn)
	return e
}
