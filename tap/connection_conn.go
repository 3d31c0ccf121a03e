package tap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// watchedConn counts what goes over a connection until its holder closes it.
type watchedConn struct {
	net.Conn
	contact        *connection
	sent, received atomic.Int64

	mu      sync.Mutex
	copies  int       // by the kernel, under way: they say what they moved when they end
	why     string    // the first thing that broke it
	readEnd bool      // the peer's end was read
	ended   time.Time // when its holder closed it; zero before that
	told    bool
}

// copyPatience is how long the end waits for copies that were under way. They
// end with the connection, unless they wait for the other one.
const copyPatience = time.Second

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	if err != nil {
		c.broke(err)
	}
	return n, err
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	if err != nil {
		c.broke(err)
	}
	return n, err
}

// ReadFrom sends what r gives, until its end.
func (c *watchedConn) ReadFrom(r io.Reader) (int64, error) {
	c.copying(1)
	defer c.copying(-1)
	n, err := io.Copy(c.Conn, r)
	c.sent.Add(n)
	if err != nil {
		c.broke(err)
	}
	return n, err
}

// WriteTo writes to w what comes, until the peer's end.
func (c *watchedConn) WriteTo(w io.Writer) (int64, error) {
	c.copying(1)
	defer c.copying(-1)
	n, err := io.Copy(w, c.Conn)
	c.received.Add(n)
	if err == nil {
		c.broke(io.EOF)
	} else {
		c.broke(err)
	}
	return n, err
}

// CloseWrite tells the peer that nothing more comes. TLS cannot say so before
// it has shaken hands.
func (c *watchedConn) CloseWrite() error {
	if secure, ok := c.Conn.(interface{ Handshake() error }); ok {
		if err := secure.Handshake(); err != nil {
			return err
		}
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of %T: %w", c.Conn, errors.ErrUnsupported)
}

// NetConn returns the connection below.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended.IsZero() {
		return err
	}
	c.ended = time.Now()
	if c.why == "" && !c.readEnd && errors.Is(err, net.ErrClosed) {
		c.why = "reset on this side" // closed below, which is how one does that
	}
	if c.copies > 0 {
		time.AfterFunc(copyPatience, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tell()
		})
		return err
	}
	c.tell()
	return err
}

// copying counts copies.
func (c *watchedConn) copying(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copies += n
	if c.copies == 0 && !c.ended.IsZero() {
		c.tell()
	}
}

// broke notes the first error that is no end in good order, and no doing of
// the holder.
func (c *watchedConn) broke(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF):
		c.readEnd = true
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	case c.why == "":
		c.why = err.Error()
	}
}

// tell is called with mu held.
func (c *watchedConn) tell() {
	if c.told {
		return
	}
	c.told = true
	c.contact.close(c.ended, uint64(c.sent.Load()), uint64(c.received.Load()), c.why)
}
