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

// OnError returns a layer that calls report when Call returns an error from the server below it.
// report receives the context, the connection and the error. You should put the layer below
// [Transparent], so that [OriginalDst] returns the connection's destination. report runs on Call's
// goroutine, and can classify the error with [ErrorKind].
//
// Admission, cancellation, body and errors: as in the server below. Cost: calling report. A nil
// report panics.
func OnError(report func(ctx context.Context, conn net.Conn, err error)) layer.Layer[net.Conn, ByteCount] {
	if report == nil {
		panic("tcplayer: nil report function")
	}
	return func(next Server) Server {
		notNil(next)
		return &failures{next, report}
	}
}

// failures is the Server of OnError.
type failures struct {
	Server
	report func(ctx context.Context, conn net.Conn, err error)
}

// Call reports an error of the wrapped Server and returns it.
func (f *failures) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	t, err := f.Server.Call(ctx, conn)
	if err != nil {
		f.report(ctx, conn, err)
	}
	return t, err
}

// Next returns the wrapped Server.
func (f *failures) Next() Server { return f.Server }

// Describe returns a node without state.
func (f *failures) Describe() layer.Node { return layer.Node{Name: "failures"} }

// ErrorKind classifies err as linkerd does. The result is a value for the label "error" in
// linkerd's metrics, such as inbound_tcp_errors_total, or "" if err is nil:
//
//	failfast               [layer.ErrFailFast]
//	tls detection timeout  no ClientHello or no handshake in time: [DetectTLS]
//	i/o                    an error on the network, in TLS or while dialing
//	loadshed               [layer.ErrNotReady], for example by a limit or a full queue
//	unexpected             any other error
func ErrorKind(err error) string {
	// The rejection itself decides, although lateError hides it from layers.
	if lateErr, ok := errors.AsType[*lateError](err); ok {
		err = lateErr.rejection
	}
	// The order matters, because an error may match several cases.
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

// hasLayer reports whether err's chain contains a [layer.Error] with the given layer name and
// kind. A nil kind matches only an error without a kind.
func hasLayer(err error, name string, kind error) bool {
	// errors.As finds the outermost Error first; the search continues with what that one wraps.
	for e := (*layer.Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Layer == name && errors.Is(e.Kind, kind) {
			return true
		}
	}
	return false
}

// isSystemError reports whether err comes from a connection or a system call. It does not check for
// net.Error, because each [layer.Error] implements that interface.
func isSystemError(err error) bool {
	for _, e := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			// The errors of the standard library that come from the network or a peer.
			return true
		}
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}
