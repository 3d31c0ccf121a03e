package message

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// CloseBody closes req's body, if there is one.
func CloseBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// ExpectsContinue reports whether h contains Expect: 100-continue. The client then waits with the
// body until the server responds.
func ExpectsContinue(h http.Header) bool { return Listed(h["Expect"], "100-continue") }

// Expectation decides whether to send a request body that waits for 100 Continue. Decide sends the
// decision, and Await receives it. It is nil if the request does not carry Expect: 100-continue.
type Expectation chan bool

// ContinueTimeout is the time in nanoseconds after which a body is sent without 100 Continue, one second.
// It is a variable for tests.
var ContinueTimeout atomic.Int64

func init() { ContinueTimeout.Store(int64(time.Second)) } //nolint:gochecknoinits // an atomic value has no literal

// NewExpectation returns the Expectation of a request with the header h.
func NewExpectation(h http.Header) Expectation {
	if !ExpectsContinue(h) {
		return nil
	}
	return make(Expectation, 1)
}

// Decide sets whether the body is sent. Only the first call counts.
func (e Expectation) Decide(send bool) {
	select {
	case e <- send:
	default:
	}
}

// Await waits until Decide is called, and reports whether to send the body. The answer is also true
// when the first bytes of a received body arrive, and after ContinueTimeout, because a server need not
// send 100 Continue. If e is nil, Await returns true immediately. If the body comes from a client that
// still waits for 100 Continue, the client receives it.
func (e Expectation) Await(body io.Reader) bool {
	if e == nil {
		return true
	}
	// A client that sends its body without waiting also decides.
	go func() {
		_ = panics.Contain(func() {
			if Arrive(body) {
				e.Decide(true) // send the body
			}
		})
	}()
	send := true
	select {
	case send = <-e:
	case <-time.After(time.Duration(ContinueTimeout.Load())):
	}
	if send {
		Proceed(body)
	}
	return send
}

// awaited is implemented by a received request body, and by the bodies that wrap it.
type awaited interface {
	// Arrive waits until body bytes have arrived, or the body has ended or was closed. It does not send
	// 100 Continue. The result is false if the body is not a received one.
	Arrive() bool
	// Proceed sends 100 Continue if the client still waits for it.
	Proceed()
}

// Arrive waits until bytes of a received body, or its end, have arrived from the client, by body's method Arrive. It
// returns false at once for a body that does not come from a client.
func Arrive(body io.Reader) bool {
	b, ok := body.(awaited)
	return ok && b.Arrive()
}

// Proceed sends 100 Continue to the client from which body is received, if the client waits for that. It does nothing
// for other bodies.
func Proceed(body io.Reader) {
	if b, ok := body.(awaited); ok {
		b.Proceed()
	}
}

// Moved tells a body that the sender had to wait for the peer before it could send the last bytes, and
// has now sent them. A layer that limits the time without progress counts that as progress.
func Moved(body io.Reader) {
	if b, ok := body.(interface{ Moved() }); ok {
		b.Moved()
	}
}

// IsRPC reports whether h's content type is gRPC or that of a Connect stream. In such a body,
// pauses are normal.
func IsRPC(h http.Header) bool {
	t := h["Content-Type"]
	return len(t) > 0 && (strings.HasPrefix(t[0], "application/grpc") || strings.HasPrefix(t[0], "application/connect"))
}
