package httplayer

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// age is when a connection was made, and how old it may become. The zero age
// is without a limit.
type age struct {
	since time.Time
	limit time.Duration
}

// ageJitter is gRPC's, of MAX_CONNECTION_AGE (gRFC A9).
const ageJitter = 0.1

// newAge is that of a connection made now, its limit about d.
func newAge(d time.Duration) age {
	if d <= 0 {
		return age{}
	}
	d = min(d, math.MaxInt64/2) // so that there is room for jitter
	off := (2*rand.Float64() - 1) * ageJitter * float64(d)
	return age{since: time.Now(), limit: d + time.Duration(off)}
}

// over reports whether the connection is too old. Without a limit it does not
// look at the clock.
func (a *age) over() bool { return a.limit > 0 && time.Since(a.since) >= a.limit }

// succession is the making of connections that take the place of those that
// are too old: one at a time, and with a back-off after one that could not be
// made. The link to the address is not told of such a failure, since nobody
// needs the new connection yet.
type succession struct {
	backoff layer.Backoff
	agedOut atomic.Int64 // connections whose place was taken

	mu       sync.Mutex
	making   bool
	failures int       // in a row
	next     time.Time // after a failure, when there may be another attempt
	err      error     // of the last attempt
}

// begin asks to make one now. Who got a yes calls end.
func (s *succession) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.making || s.failures > 0 && time.Now().Before(s.next) {
		return false
	}
	s.making = true
	return true
}

func (s *succession) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making, s.err = false, err
	if err == nil {
		s.failures = 0
		return
	}
	s.next = time.Now().Add(s.backoff.Delay(s.failures))
	s.failures++
}

// lastError is why there is no successor, or nil.
func (s *succession) lastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
