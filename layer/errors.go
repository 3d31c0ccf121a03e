package layer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/panics"
)

// These are the kinds of errors that layers return. Test for them with [errors.Is]; the [Error]
// that wraps a kind tells the details.
var (
	// ErrNotReady reports a rejection. The request was not sent. The caller may send it to
	// another service now, or to the same service later.
	ErrNotReady = errors.New("not ready")

	// errShed is the kind of rejection by a layer that has run out of slots or tokens. A Retry
	// does not retry such a rejection, because that would add load.
	errShed error = &kind{"not ready", ErrNotReady}

	// errOpen is the kind of a rejection by an open breaker. A Retry does not wait until it closes.
	errOpen error = &kind{"not ready", ErrNotReady}

	// ErrClosed reports a permanent rejection: the service will never be ready again.
	// ErrClosed matches ErrNotReady.
	ErrClosed error = &kind{"closed", ErrNotReady}

	// ErrFailFast reports that a request was rejected and must not wait in a [Queue]: waiting
	// would not help, or the request has already waited for the maximum time. ErrFailFast matches
	// ErrNotReady.
	ErrFailFast error = &kind{"fail-fast", ErrNotReady}

	// ErrTimeout reports that a layer's time limit expired. The request may have been processed.
	// ErrTimeout matches [context.DeadlineExceeded].
	ErrTimeout error = &kind{"timeout", context.DeadlineExceeded}

	// ErrResponseHeaderTimeout, ErrIdleTimeout and ErrAttemptTimeout report which time
	// limit expired: the limit for the response headers, for one Read of the body, or for
	// one attempt. They match ErrTimeout.
	ErrResponseHeaderTimeout error = &kind{"response header timeout", ErrTimeout}
	ErrIdleTimeout           error = &kind{"idle timeout", ErrTimeout}
	ErrAttemptTimeout        error = &kind{"attempt timeout", ErrTimeout}

	// ErrRetryRejected reports that a retry was rejected, although an earlier attempt was
	// sent. It does not match ErrNotReady, because the request may have been processed.
	ErrRetryRejected = errors.New("rejected on a retry")

	// ErrInjected reports an error that [FaultInjection] injected. Such an error does not count
	// as a failure of the service.
	ErrInjected = errors.New("injected fault")

	// ErrNoRoute reports that no service exists for the request, for example for its key or
	// path.
	ErrNoRoute = errors.New("no route")

	// ErrBodyClosedEarly is passed to [Observer].End for a response body that was closed before it
	// was read to its end.
	ErrBodyClosedEarly = errors.New("response body closed before its end")
)

// PanicError is a panic that was recovered from a callback on one of this library's goroutines.
// Value is the panic value, and Stack the goroutine's stack. It matches no other error, even if
// Value is an error. See "Panics" in the package documentation.
type PanicError = panics.Error

// kind is a sentinel error with its own text that wraps a more general one: errors.Is matches it with
// itself, and with what the error in its field kind matches.
type kind struct {
	text string
	kind error
}

func (k *kind) Error() string { return k.text }

// Unwrap returns the more general kind.
func (k *kind) Unwrap() error { return k.kind }

// Error is an error that a layer returns. It names the layer, the target and the endpoint at which
// the error occurred. errors.Is matches it with Kind and with every error that Err matches.
type Error struct {
	Layer      string        // the layer that returned it: "queue", "limit", "balance"
	Target     string        // the target of the stack ("web.default:80"), if known
	Endpoint   string        // the address of the endpoint, if one was tried
	Reason     string        // the reason in a few words: "8 of 8 in flight"
	Waited     time.Duration // the time that the request waited in this layer
	RetryAfter time.Duration // the time after which another attempt may succeed; 0 if unknown
	Kind       error         // one of the kinds of this package, or nil
	Err        error         // the cause, or nil
}

// Error returns the error text: layer, target, endpoint, kind, reason, waiting time and cause, in
// this order. Parts that are not set are left out.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Layer)
	for _, name := range []string{e.Target, e.Endpoint} {
		if name != "" {
			b.WriteString(" " + name)
		}
	}
	// A kind such as "timeout" may have the same name as the layer.
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

// Unwrap returns Kind and Err, without those that are nil.
func (e *Error) Unwrap() []error {
	// errors.Is and errors.As search both, without a nil among them.
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

// Is implements the method that errors.Is calls: it reports whether target is the Kind, or an error
// that the Kind wraps. It exists because errors.Is would otherwise only use Unwrap, which allocates.
func (e *Error) Is(target error) bool {
	// Only Kind's chain is searched. errors.Is itself continues with Unwrap, and so with Err.
	for kind := e.Kind; kind != nil; kind = errors.Unwrap(kind) {
		if kind == target {
			return true
		}
	}
	return false
}

// Timeout reports whether a time limit or deadline expired. Timeout and Temporary implement
// net.Error.
func (e *Error) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// Temporary reports whether the same request may succeed later. It returns true for
// rejections, except those that match [ErrClosed].
func (e *Error) Temporary() bool {
	return errors.Is(e, ErrNotReady) && !errors.Is(e, ErrClosed)
}

// RetryAfter returns the longest RetryAfter among the [Error] values in err's chain. It returns
// false if all of them are 0 or the chain contains no Error.
func RetryAfter(err error) (time.Duration, bool) {
	var e *Error
	if !errors.As(err, &e) {
		return 0, false
	}
	// An inner layer may ask for a longer wait, which the outer one must not shorten.
	retryAfter := e.RetryAfter
	if inner, ok := RetryAfter(e.Err); ok {
		retryAfter = max(retryAfter, inner)
	}
	return retryAfter, retryAfter > 0
}

// rejectDone rejects a request because its context ctx has ended. layer and target become the Layer
// and Target of the returned [Error].
func rejectDone(ctx context.Context, layer, target string) error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}
