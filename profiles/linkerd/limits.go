package linkerd

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/stream"
)

// Limits are the time limits of each stream, see [WithStreamLimits]. The zero value
// means the limits that linkerd's chart sets for its proxies: 3 s, 5 min and 1 h.
// A field below 0 means no limit. Time in which the consumer does not read counts
// for Lifetime only.
type Limits struct {
	// Initial is the limit for the first message, connecting included. A stream
	// that exceeds it fails with the code DeadlineExceeded. 0 means 3 s.
	Initial time.Duration

	// Idle is the limit for each later message, and Lifetime the limit for the
	// whole stream. A stream that exceeds one of them is reopened and brings the
	// profile again; the last profile stays in force meanwhile. Up to a tenth is
	// added at random, so that the streams of many clients do not end at once. 0
	// means 5 min and 1 h; the smallest value is 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// WithStreamLimits sets the time limits of each stream. The default is the zero
// [Limits]. The limits find a controller that does not answer, and they bound by
// Lifetime how long a lost message has an effect.
func WithStreamLimits(l Limits) Option {
	return optionFunc(func(o *options) { o.limits = stream.Limits(l).OrDefault() })
}

// errNoAnswer is the end of a stream that exceeded Limits.Initial.
var errNoAnswer = status.Error(codes.DeadlineExceeded, "the controller does not answer")
