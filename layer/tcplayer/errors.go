package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/gotower/gotower/layer"
)

// OnError is the layer that gives report each error that a connection ended with
// below, with the connection: refusals too, as long as nobody above tries again.
// Put it below [Transparent], and [OriginalDst] of the connection says what it was
// for. It is called in the connection's goroutine, before its end is known above.
// See [ErrorKind].
//
// Admission, cancellation, body and errors are those of next. Cost: none but that
// of report. A nil report panics.
func OnError(report func(ctx context.Context, conn net.Conn, err error)) layer.Layer[net.Conn, ByteCount] {
	if report == nil {
		panic("tcplayer: nil report function")
	}
	return func(next Server) Server {
		notNil(next)
		return &failures{next, report}
	}
}

type failures struct {
	Server
	report func(ctx context.Context, conn net.Conn, err error)
}

func (f *failures) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	t, err := f.Server.Call(ctx, conn)
	if err != nil {
		f.report(ctx, conn, err)
	}
	return t, err
}

func (f *failures) Next() Server { return f.Server }

func (f *failures) Describe() layer.Node { return layer.Node{Name: "failures"} }

// ErrorKind returns what linkerd's proxy calls an error that a connection ended
// with, in the label "error" of inbound_tcp_errors_total and its like; "" for nil:
//
//	failfast               a queue gave up: [layer.ErrFailFast]
//	tls detection timeout  no ClientHello, or no handshake, in time: [DetectTLS]
//	i/o                    what the network, TLS or the other side did; nobody there
//	loadshed               a limit, or a queue that was full: [layer.ErrNotReady]
//	unexpected             all else: a loop, no server for it, a time limit
//
// Who was refused after its first bytes were read counts as who was refused.
func ErrorKind(err error) string {
	if late, ok := errors.AsType[*lateRejection](err); ok {
		err = late.refusal
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, layer.ErrFailFast):
		return "failfast"
	case errors.Is(err, ErrLoop), errors.Is(err, layer.ErrNoRoute), errors.Is(err, context.Canceled):
		return "unexpected"
	case hasLayer(err, "tls", layer.ErrTimeout):
		return "tls detection timeout"
	case isSystemError(err), hasLayer(err, "tls", nil), hasLayer(err, "transport", nil), hasLayer(err, "dial", nil):
		return "i/o"
	case errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed):
		return "loadshed"
	default:
		return "unexpected"
	}
}

// of reports whether an error of that layer, and of exactly that kind, is in the
// chain of err.
func hasLayer(err error, name string, kind error) bool {
	for e := (*layer.Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Layer == name && errors.Is(e.Kind, kind) {
			return true
		}
	}
	return false
}

// ofSystem reports whether err comes from a connection. All errors of this library
// have the methods of a net.Error, so that this cannot tell.
func isSystemError(err error) bool {
	for _, e := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}
