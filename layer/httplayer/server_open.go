package httplayer

import (
	"net"
	"sync"
	"time"
)

// opening is the read deadline of a connection whose protocol is not known yet.
type opening struct {
	conn net.Conn

	mu    sync.Mutex
	by    time.Time // the deadline; zero: none
	heard bool      // something came, or nobody listens any more
}

// onItsWay is what draining leaves a client to be heard in, with however little
// patience: what it has sent may not have been read yet.
const onItsWay = 100 * time.Millisecond

// allow gives the client d from now on, or any time if d is 0.
func (o *opening) allow(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.allowLocked(d)
}

func (o *opening) allowLocked(d time.Duration) {
	by := time.Time{}
	if d > 0 {
		by = time.Now().Add(d)
	}
	if !by.Equal(o.by) {
		o.by = by
		_ = o.conn.SetReadDeadline(by)
	}
}

// begins says that the first bytes have come: the next ones have d.
func (o *opening) begins(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard = true
	o.allowLocked(d)
}

// hurry says that draining has begun: who has said nothing has no more than d left.
func (o *opening) hurry(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d = max(d, onItsWay)
	if !o.heard && (o.by.IsZero() || time.Until(o.by) > d) {
		o.allowLocked(d)
	}
}

// over leaves the connection without a deadline.
func (o *opening) over() { o.begins(0) }
