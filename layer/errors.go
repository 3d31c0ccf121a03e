package layer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/internal/panics"
)

// The kinds of error that layers return. Test for them with [errors.Is]; more
// is said by the [Error] around them.
var (
	// ErrNotReady is a refusal: the request is untouched and may be sent
	// elsewhere, or here again later.
	ErrNotReady = errors.New("not ready")

	// errShed is the refusal of a layer that has no room or no token for the
	// request: load shed, which nobody tries again before there is less of it.
	errShed error = &kind{"not ready", ErrNotReady}

	// ErrClosed is a refusal for good: this service will never be ready again.
	// It matches ErrNotReady too.
	ErrClosed error = &kind{"closed", ErrNotReady}

	// ErrFailFast is the refusal of a request that was queued for as long as
	// its queue allows. It matches ErrNotReady too.
	ErrFailFast error = &kind{"fail-fast", ErrNotReady}

	// ErrTimeout says that a layer's own time limit ran out. Whether the
	// request was processed is not known. It matches
	// [context.DeadlineExceeded] too.
	ErrTimeout error = &kind{"timeout", context.DeadlineExceeded}

	// ErrResponseHeaderTimeout, ErrIdleTimeout and ErrAttemptTimeout say which limit it was:
	// that on the head of the response, that on the silence between two pieces
	// of its body, or that on a single try of several. They match ErrTimeout.
	ErrResponseHeaderTimeout error = &kind{"response head timeout", ErrTimeout}
	ErrIdleTimeout           error = &kind{"idle timeout", ErrTimeout}
	ErrAttemptTimeout        error = &kind{"try timeout", ErrTimeout}

	// ErrRetryRejected says that a request was sent, and that a later try, which
	// was to help, was refused. It is no refusal: the request is not untouched.
	ErrRetryRejected = errors.New("refused on a further try")

	// ErrInjected marks a fault that was made on purpose, so that it counts
	// against nobody. See [FaultInjection].
	ErrInjected = errors.New("injected fault")

	// ErrNoRoute says that no service is there for the request.
	ErrNoRoute = errors.New("no route")

	// ErrBodyClosedEarly is the end of a response body that was closed before all of
	// it was read. See [Observer].
	ErrBodyClosedEarly = errors.New("response body closed before its end")
)

// PanicError is a panic of a callback that came on a goroutine of this library, where
// no caller could recover it. It has the Value of the panic and the Stack of the
// goroutine, and matches no other error. See the package's section on panics.
type PanicError = panics.Error

// kind is an error that is also another, more general one.
type kind struct {
	text string
	is   error
}

func (k *kind) Error() string { return k.text }
func (k *kind) Unwrap() error { return k.is }

// Error is an error with its place. It matches its Kind and whatever Err
// matches.
type Error struct {
	Layer      string        // the layer that decided: "queue", "limit", "balance"
	Target     string        // what the stack is for ("web.default:80"), if known
	Endpoint   string        // the address that was tried, if one was
	Reason     string        // why, in a few words: "8 of 8 in flight"
	Waited     time.Duration // how long the request had waited in this layer
	RetryAfter time.Duration // when it may be worth trying again, from then on; 0 if that is not known
	Kind       error         // one of the kinds of this package, or nil
	Err        error         // the cause, if there is one
}

// Error reads from the outside in: layer, target, endpoint, kind, reason,
// wait, cause.
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

// Is answers for the kind without an allocation, which Unwrap costs: refusals
// are looked at wherever they pass.
func (e *Error) Is(target error) bool {
	for kind := e.Kind; kind != nil; kind = errors.Unwrap(kind) {
		if kind == target {
			return true
		}
	}
	return false
}

// Timeout reports whether a deadline ran out. With it and Temporary an Error is
// a net.Error.
func (e *Error) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// Temporary reports whether the same request may succeed later: it was
// refused, and not for good.
func (e *Error) Temporary() bool {
	return errors.Is(e, ErrNotReady) && !errors.Is(e, ErrClosed)
}

// RetryAfter returns how long to wait before the request is sent again, if err
// says so: the longest of what the errors in its chain ask for.
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

// refuseDone is how an admission point turns away a request whose context is
// done: untouched, and with the cause.
func refuseDone(ctx context.Context, layer, target string) error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: left.Why(ctx), Err: context.Cause(ctx)}
}
