package layer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/panics"
)

// Kinds of errors that layers return. Test for them with [errors.Is]. The
// [Error] around them has details.
var (
	// ErrNotReady is a rejection: the request is untouched and may be sent
	// elsewhere, or here again later.
	ErrNotReady = errors.New("not ready")

	// errShed is the rejection of a layer without room or tokens. It is not
	// retried until the load is lower.
	errShed error = &kind{"not ready", ErrNotReady}

	// ErrClosed is a permanent rejection: this service will never be ready
	// again. It matches ErrNotReady.
	ErrClosed error = &kind{"closed", ErrNotReady}

	// ErrFailFast rejects a request that waited as long as its queue allows. It
	// matches ErrNotReady.
	ErrFailFast error = &kind{"fail-fast", ErrNotReady}

	// ErrTimeout reports that the time limit of a layer expired. The request
	// may have been processed. It matches [context.DeadlineExceeded].
	ErrTimeout error = &kind{"timeout", context.DeadlineExceeded}

	// ErrResponseHeaderTimeout, ErrIdleTimeout and ErrAttemptTimeout name the
	// limit: on the response headers, on the silence between two pieces of the
	// body, or on one attempt. They match ErrTimeout.
	ErrResponseHeaderTimeout error = &kind{"response header timeout", ErrTimeout}
	ErrIdleTimeout           error = &kind{"idle timeout", ErrTimeout}
	ErrAttemptTimeout        error = &kind{"attempt timeout", ErrTimeout}

	// ErrRetryRejected: an earlier attempt was sent and a later attempt was
	// rejected. The request may have been processed, so it does not match
	// ErrNotReady.
	ErrRetryRejected = errors.New("rejected on a retry")

	// ErrInjected marks an injected fault, which does not count against a
	// service. See [FaultInjection].
	ErrInjected = errors.New("injected fault")

	// ErrNoRoute reports that no service exists for the request.
	ErrNoRoute = errors.New("no route")

	// ErrBodyClosedEarly is the end of a response body that was closed before
	// it was read completely. See [Observer].
	ErrBodyClosedEarly = errors.New("response body closed before its end")
)

// PanicError is a recovered panic of a callback on a goroutine of this library.
// It has the Value of the panic and the Stack of the goroutine, and matches no
// other error. See "Panics" in the package documentation.
type PanicError = panics.Error

// kind is an error that also matches a more general one.
type kind struct {
	text string
	is   error
}

func (k *kind) Error() string { return k.text }
func (k *kind) Unwrap() error { return k.is }

// Error is an error with its place. It matches its Kind and everything that Err
// matches.
type Error struct {
	Layer      string        // the layer that returned it: "queue", "limit", "balance"
	Target     string        // the target of the stack ("web.default:80"), if known
	Endpoint   string        // the address of the endpoint, if one was tried
	Reason     string        // the reason in a few words: "8 of 8 in flight"
	Waited     time.Duration // how long the request waited in this layer
	RetryAfter time.Duration // when another attempt may succeed, from the time of the error; 0 if unknown
	Kind       error         // one of the kinds of this package, or nil
	Err        error         // the cause, or nil
}

// Error returns layer, target, endpoint, kind, reason, waiting time and cause,
// in this order.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Layer)
	for _, where := range []string{e.Target, e.Endpoint} {
		if where != "" {
			b.WriteString(" " + where)
		}
	}
	if e.Kind != nil && e.Kind.Error() != e.Layer {
		b.WriteString(": " + e.Kind.Error())
	}
	if e.Reason != "" {
		b.WriteString(": " + e.Reason)
	}
	if e.Waited > 0 {
		b.WriteString(" (waited " + e.Waited.Round(time.Microsecond).String() + ")")
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	switch {
	case e.Kind == nil && e.Err == nil:
		return nil
	case e.Err == nil:
		return []error{e.Kind}
	case e.Kind == nil:
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

// Is compares the kind without the allocation of Unwrap, because rejections are
// tested in many layers.
func (e *Error) Is(target error) bool {
	for kind := e.Kind; kind != nil; kind = errors.Unwrap(kind) {
		if kind == target {
			return true
		}
	}
	return false
}

// Timeout reports whether a deadline expired. With Temporary it makes Error a
// net.Error.
func (e *Error) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// Temporary reports whether the same request may succeed later: it was
// rejected, and not permanently.
func (e *Error) Temporary() bool {
	return errors.Is(e, ErrNotReady) && !errors.Is(e, ErrClosed)
}

// RetryAfter returns the wait that err requests before another attempt: the
// longest one in its chain.
func RetryAfter(err error) (time.Duration, bool) {
	var e *Error
	if !errors.As(err, &e) {
		return 0, false
	}
	after := e.RetryAfter
	if below, ok := RetryAfter(e.Err); ok {
		after = max(after, below)
	}
	return after, after > 0
}

// rejectDone returns the rejection of a request whose context has ended.
func rejectDone(ctx context.Context, layer, target string) error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}
