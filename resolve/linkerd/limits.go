package linkerd

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/stream"
)

// Limits are what [StreamLimits] holds each stream to. The zero value is what
// linkerd's chart gives its proxies: 3 s, 5 min, 1 h. A field below 0 is no
// limit. Waiting for the consumer counts for Lifetime alone.
type Limits struct {
	// Initial is how long to wait for the first message that says something,
	// which a Remove does not, connecting included. After that the stream has failed, with the code
	// DeadlineExceeded. 0 means 3 s.
	Initial time.Duration

	// Idle is how long to wait for each message after that, and Lifetime how
	// long a stream lasts in all. After that, and up to a tenth later at random
	// lest all streams of many clients do so at once, the stream is ended and
	// opened again, and so brings all there is. That is routine, and a line at
	// the level of debug. 0 means 5 min and 1 h, the least is 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// StreamLimits ends streams that are silent or old, so that what was lost on
// the way is made up for after Lifetime at the latest, and a controller that
// takes streams and says nothing is found out. The default, as it is linkerd's
// proxy's own, is no limit: use it unless the controller is on this machine.
func StreamLimits(l Limits) Option {
	return option(func(o *options) { o.limits = stream.Limits(l).OrDefault() })
}

// errSilent is that nothing came at all.
var errSilent = status.Error(codes.DeadlineExceeded, "the controller says nothing")
