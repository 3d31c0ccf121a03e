package httplayer

import (
	"io"
	"math"
	"time"
)

// hold sets the write deadline for the next piece of an HTTP/1.1 response,
// unless the handler set one. It renews the deadline after a third of it,
// because a new deadline costs more than reading the clock.
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

// SetWriteDeadline is called by a handler with its own limits. net/http resets
// it after each request.
func (c *accepted) SetWriteDeadline(t time.Time) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if t.IsZero() && !c.theirs && !c.tunnel.Load() {
		return nil // the deadline of the Server stays, and is renewed in time
	}
	c.theirs, c.by = !t.IsZero(), time.Time{}
	return c.Conn.SetWriteDeadline(t)
}

// atOnce is the number of bytes under one deadline.
const atOnce = 256 << 10

// ReadFrom lets the kernel copy, if supported.
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
	// The kernel copies from a file in one LimitedReader, as that of io.CopyN,
	// but not in two.
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
