package grpclayer

import (
	"errors"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// pushbackKey is the trailer by which a server says when it wants to see a
// call again (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// maxPushback is the longest that a server is waited for.
const maxPushback = 24 * time.Hour

// Replayer is the [layer.Replayer] of gRPC. A call can be sent as it is any number
// of times: the request of a unary call or of a stream of responses is a message in
// memory, and any other stream that is opened again has no message sent yet.
type Replayer struct {
	// Safe reports whether calling a method twice has the effect of calling it
	// once. The default is that none is safe. A stream of responses to a single
	// request is safe or not as a unary call is: see [Client.Stream].
	IsIdempotent func(c *Call) bool
}

// Idempotent asks Safe.
func (r Replayer) Idempotent(c *Call) bool { return r.IsIdempotent != nil && r.IsIdempotent(c) }

// Replay returns nil: there is nothing to keep.
func (Replayer) Replay(*Call, int64) layer.Replay[*Call] { return nil }

// RetryAfter reads grpc-retry-pushback-ms, as gRFC A6 says: a number of
// milliseconds, held to a day, is how long to wait; anything else asks not to
// send the call again.
func (Replayer) RetryAfter(_ *Reply, err error) (time.Duration, bool) {
	call, ok := errors.AsType[*callError](err)
	if !ok || len(call.pushback) == 0 {
		return 0, false
	}
	if len(call.pushback) > 1 {
		return -1, true
	}
	ms, err := strconv.ParseUint(call.pushback[0], 10, 31)
	if err != nil {
		return -1, true
	}
	return min(time.Duration(ms)*time.Millisecond, maxPushback), true
}

// Drain cancels a stream. A unary reply holds nothing.
func (Replayer) Drain(r *Reply) {
	if r != nil && r.stream != nil {
		r.stream.end(layer.ErrBodyClosedEarly)
	}
}
