package httplayer

import (
	"io"
	"math"
	"time"
)

// hold sets the time by which the next piece of an HTTP/1.1 response must have
// gone out, if nobody else did. It is renewed when a third of it has passed, for
// that costs more than a look at the clock.
func (c *accepted) hold() {
	stall := c.server.writeStall
	if stall == 0 || c.tunnel.Load() {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if now := time.Now(); !c.theirs && c.by.Sub(now) < stall {
		c.by = now.Add(stall + stall/2)
		_ = c.Conn.SetWriteDeadline(c.by)
	}
}

// SetWriteDeadline is for handlers that have limits of their own; net/http takes
// them back after each request.
func (c *accepted) SetWriteDeadline(t time.Time) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if t.IsZero() && !c.theirs && !c.tunnel.Load() {
		return nil // ours holds on, and is renewed before it counts
	}
	c.theirs, c.by = !t.IsZero(), time.Time{}
	return c.Conn.SetWriteDeadline(t)
}

// atOnce is how much is copied under one deadline.
const atOnce = 256 << 10

// ReadFrom lets the kernel copy, where the connection can.
func (c *accepted) ReadFrom(r io.Reader) (n int64, err error) {
	to, ok := c.Conn.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	if c.tunnel.Load() {
		n, err = to.ReadFrom(r)
		c.received.Add(n)
		return n, err
	}
	// The kernel knows a file in a LimitedReader, as that of io.CopyN, but in no
	// deeper one.
	whole, limited := r.(*io.LimitedReader)
	if !limited {
		whole = &io.LimitedReader{R: r, N: math.MaxInt64}
	}
	for whole.N > 0 {
		c.hold()
		size := min(whole.N, atOnce)
		some, err := to.ReadFrom(&io.LimitedReader{R: whole.R, N: size})
		n += some
		whole.N -= some
		c.received.Add(some)
		if err != nil || some < size {
			return n, err
		}
	}
	return n, nil
}
