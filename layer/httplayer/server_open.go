package httplayer

import (
	"net"
	"sync"
	"time"
)

// opening is the read deadline of a connection before its protocol is known.
type opening struct {
	conn net.Conn

	mu    sync.Mutex
	by    time.Time // the deadline, or zero
	heard bool      // a byte came, or the connection ended
}

// onItsWay is the minimum time that draining leaves for the first byte, because
// sent bytes may not have been read yet.
const onItsWay = 100 * time.Millisecond

// allow sets the limit for the first byte; 0 means no limit.
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

// begins sets the limit for the bytes after the first one.
func (o *opening) begins(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard = true
	o.allowLocked(d)
}

// hurry shortens the limit to d when draining starts, unless a byte came.
func (o *opening) hurry(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d = max(d, onItsWay)
	if !o.heard && (o.by.IsZero() || time.Until(o.by) > d) {
		o.allowLocked(d)
	}
}

// over removes the deadline.
func (o *opening) over() { o.begins(0) }
