package grpclayer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/panics"
)

// limitedStream is a server's stream whose handler sees the layers' context.
//
// A handler that waits in RecvMsg or SendMsg waits for the stream, and gRPC has
// no call that ends that before the handler returns. What it has is the status,
// which ends the stream: it is sent as soon as the layers' context ends first.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context //nolint:containedctx // what Context returns
	wire    statusWriter
	release func() bool                   // nil where the layers end nothing
	end     atomic.Pointer[status.Status] // nil until the layers ended it, or the handler returned

	opening sync.Mutex  // held while the header or the status is being written
	opened  atomic.Bool // the header is on its way
}

// statusWriter is gRPC's own side of a stream.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// returned is the end of a stream whose handler returned in time.
var returned = status.New(codes.OK, "") //nolint:gochecknoglobals // it never changes

// limit gives ss the context that layers made of its own.
func limit(ctx context.Context, ss grpc.ServerStream) *limitedStream {
	l := &limitedStream{ServerStream: ss, ctx: ctx}
	wire, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	if ok && ctx.Done() != ss.Context().Done() {
		l.wire = wire
		l.release = context.AfterFunc(ctx, func() { _ = panics.Contain(l.cut) })
	}
	return l
}

// cut ends the stream, unless that ended by itself.
func (l *limitedStream) cut() {
	if l.ServerStream.Context().Err() != nil {
		return
	}
	st := status.FromContextError(l.ctx.Err())
	_ = panics.Contain(func() { // by a method of the cause
		cause := context.Cause(l.ctx)
		code := Code(cause)
		if code == codes.Unknown { // a cause that says nothing to gRPC
			code = st.Code()
		}
		st = status.New(code, cause.Error())
	})
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.end.CompareAndSwap(nil, st) {
		_ = l.wire.WriteStatus(st) // fails only where the client has gone
	}
}

// stop is called when the handler has returned. It returns the error that the
// client was told before that, if it was.
func (l *limitedStream) stop() error {
	if l == nil || l.release == nil {
		return nil
	}
	l.release()
	if l.end.CompareAndSwap(nil, returned) {
		return nil
	}
	return l.end.Load().Err()
}

// Context is the stream's, with what the layers made of it.
func (l *limitedStream) Context() context.Context { return l.ctx }

// RecvMsg receives one message.
func (l *limitedStream) RecvMsg(m any) error { return l.why(l.ServerStream.RecvMsg(m)) }

// SendMsg sends one message.
func (l *limitedStream) SendMsg(m any) error {
	if l.wire != nil && !l.opened.Load() {
		if err := l.open(); err != nil {
			return err
		}
	}
	return l.why(l.ServerStream.SendMsg(m))
}

// open sends the header before the first message. gRPC would do that, but not
// beside somebody who writes the status: the message came before any header.
func (l *limitedStream) open() error {
	l.opening.Lock()
	defer l.opening.Unlock()
	if st := l.end.Load(); st != nil && st != returned {
		return st.Err()
	}
	_ = l.ServerStream.SendHeader(nil) // fails where it was sent, or SendMsg will say why
	l.opened.Store(true)
	return nil
}

// why is the reason of an error: to gRPC it is that the stream is over.
func (l *limitedStream) why(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if st := l.end.Load(); st != nil && st != returned {
		return st.Err()
	}
	return err
}
