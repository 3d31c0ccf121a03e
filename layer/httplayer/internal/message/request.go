package message

import (
	"net/http"
	"strings"
	"time"
)

// CloseBody closes the body of req, if it has one.
func CloseBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// ExpectsContinue reports whether h has Expect: 100-continue. The client then waits with
// the body for a response of the server.
func ExpectsContinue(h http.Header) bool { return Listed(h["Expect"], "100-continue") }

// Expectation is a channel for the decision whether to send a request body that waits for 100
// Continue. It is nil if the request does not have Expect: 100-continue.
type Expectation chan bool

// ContinueTimeout is the time after which a body is sent without 100 Continue.
const ContinueTimeout = time.Second

// NewExpectation returns the Expectation of a request with the header h.
func NewExpectation(h http.Header) Expectation {
	if !ExpectsContinue(h) {
		return nil
	}
	return make(Expectation, 1)
}

// Decide sets whether the body is sent. Only the first call has an effect.
func (e Expectation) Decide(send bool) {
	select {
	case e <- send:
	default:
	}
}

// Await waits until Decide is called, and returns whether to send the body. It returns true after
// ContinueTimeout, and at once if e is nil.
func (e Expectation) Await() bool {
	if e == nil {
		return true
	}
	select {
	case send := <-e:
		return send
	case <-time.After(ContinueTimeout):
		return true
	}
}

// IsRPC reports whether h has the content type of gRPC or of a stream of the Connect
// protocol. In the body of such a message, pauses are normal.
func IsRPC(h http.Header) bool {
	t := h["Content-Type"]
	return len(t) > 0 && (strings.HasPrefix(t[0], "application/grpc") || strings.HasPrefix(t[0], "application/connect"))
}
