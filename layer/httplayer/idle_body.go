package httplayer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
)

// paced is a request body that may not stand still, see [WithMinBodyRate]. Its clock
// runs while somebody waits in Read.
type paced struct {
	io.ReadCloser
	writer http.ResponseWriter
	conn   *accepted // if it is one of HTTP/1.1
	idle   time.Duration
	rate   int

	mu      sync.Mutex
	timer   *time.Timer
	armed   bool // the timer runs; it is let run out, and set again if need be
	reading bool
	since   time.Time     // when that Read began
	waited  time.Duration // in all others
	read    int64
	ended   bool // nothing more of it comes
	over    bool
	slow    *slowBodyError

	pauses  *SlowBodyQuota // nil: it may not fall behind
	client  netip.Prefix   // whose place there it takes
	excused bool           // it has one
}

// pace returns the body of r with a clock, or nil if it needs none.
func (s *Server) pace(w http.ResponseWriter, r *http.Request, c *accepted) *paced {
	talk := isTalk(r) || r.Method == http.MethodConnect
	if s.bodyIdle == 0 || r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody || talk {
		return nil
	}
	if r.ProtoMajor != 1 {
		c = nil
	}
	b := &paced{ReadCloser: r.Body, writer: w, conn: c, idle: s.bodyIdle, rate: s.bodyRate}
	if c != nil {
		c.body.Store(b)
	}
	if r.ContentLength < 0 {
		b.pauses, b.client = pausesOf(r)
	}
	return b
}

func (b *paced) Read(p []byte) (int, error) {
	b.begin()
	n, err := b.ReadCloser.Read(p)
	return n, b.end(n, err)
}

func (b *paced) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading, b.since = true, time.Now()
	if b.armed || b.over || b.excused {
		return
	}
	b.armed = true
	if b.timer == nil {
		b.timer = time.AfterFunc(b.allowed(), b.look)
	} else {
		b.timer.Reset(b.allowed())
	}
}

func (b *paced) end(n int, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.waited += time.Since(b.since)
	b.read += int64(n)
	if err != nil {
		b.ended = true
		b.leave()
	}
	if b.slow == nil || n > 0 || errors.Is(err, io.EOF) {
		return err
	}
	if b.conn != nil {
		b.conn.hushed.Store(false)
	}
	return b.slow
}

// allowed is how long the Read that is under way may take, with mu held.
func (b *paced) allowed() time.Duration {
	if b.rate == 0 {
		return b.idle
	}
	owed := b.idle + time.Duration(float64(b.read)/float64(b.rate)*float64(time.Second)) - b.waited
	return max(0, min(b.idle, owed))
}

// look is called when the timer ran out.
func (b *paced) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	if b.over || !b.reading {
		return
	}
	if left := b.allowed() - time.Since(b.since); left > 0 {
		b.armed = true
		b.timer.Reset(left)
		return
	}
	if b.excused = b.pauses.enter(b.client); b.excused {
		return
	}
	b.slow = &slowBodyError{read: b.read, waited: b.waited + time.Since(b.since)}
	if b.conn != nil {
		b.conn.hushed.Store(true)
	}
	_ = http.NewResponseController(b.writer).SetReadDeadline(time.Unix(1, 0))
}

// unread reports whether a Read below, of more than the byte that tells whether the
// client has gone, is net/http's own: it begins to answer, and nobody else will read
// the rest. A deadline that there is stays.
func (b *paced) unread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.reading && !b.ended && !b.over && !b.conn.bounded.Load() && !b.conn.tunnel.Load()
}

// stop ends the clock, when the handler returns. Of what is left of an HTTP/1.1
// body net/http will read some more before it answers: from now on all of that has
// idle to come. net/http takes the deadline back before the next request; one that
// the handler has set is left.
func (b *paced) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.leave()
	if b.timer != nil {
		b.timer.Stop()
	}
	c := b.conn
	if c == nil {
		return
	}
	c.body.Store(nil)
	if !b.ended && !c.tunnel.Load() && !c.bounded.Load() {
		// net/http may have had the rest, and be listening for the client to go.
		c.left.Store(true)
		_ = http.NewResponseController(b.writer).SetReadDeadline(time.Now().Add(b.idle))
	}
}

// leave gives its place back, with mu held. It is not asked for another.
func (b *paced) leave() {
	if b.excused {
		b.pauses.leave(b.client)
	}
	b.excused, b.pauses = false, nil
}

var _ net.Error = (*slowBodyError)(nil)

// slowBodyError is the client's fault.
type slowBodyError struct {
	read   int64
	waited time.Duration
}

func (e *slowBodyError) Error() string {
	return fmt.Sprintf("the request body came too slowly: %d bytes in %v of waiting", e.read, e.waited.Round(time.Millisecond))
}

func (e *slowBodyError) Unwrap() []error {
	return []error{&StatusError{Code: http.StatusRequestTimeout}, layer.ErrIdleTimeout}
}

// Timeout and Temporary make it a net.Error, as a deadline's is.
func (e *slowBodyError) Timeout() bool   { return true }
func (e *slowBodyError) Temporary() bool { return false }
