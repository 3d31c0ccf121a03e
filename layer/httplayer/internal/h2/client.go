package h2

import (
	"net"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ClientConfig is the configuration of the connections of an endpoint. The zero
// value has the defaults.
type ClientConfig struct {
	StreamWindow int
	ConnWindow   int
	Secure       bool // the scheme is https, unless the request specifies one

	// A server that sends nothing for PingInterval while there are streams is
	// sent a PING. The connection ends if it sends nothing for PingTimeout more,
	// whose default is 20 s. An interval of 0 disables this.
	PingInterval time.Duration
	PingTimeout  time.Duration

	// Changed is called without locks when a method of the connection may return
	// another value than before: on SETTINGS, on GOAWAY, at the end, and when a
	// full connection has room. It must not block. Drain and Close do not call it
	// themselves.
	Changed func(c *ClientConn)
}

// ClientConn is the client side of a connection.
type ClientConn struct {
	conn
	cfg      *ClientConfig
	settledC chan struct{}
	done     chan struct{}
	goAwayOf *ConnError // the last GOAWAY with an error, with the mu of the connection
}

const (
	unsettledStreams = 100  // limit before the first SETTINGS
	unlimitedStreams = 1000 // and if SETTINGS do not have one
)

// NewClientConn returns the client side of a connection, and starts its
// goroutines.
func NewClientConn(nc net.Conn, cfg *ClientConfig) *ClientConn {
	c := &ClientConn{cfg: cfg, settledC: make(chan struct{}), done: make(chan struct{})}
	c.init(nc, newLimits(0, 0, 0, cfg.StreamWindow, cfg.ConnWindow))
	c.client, c.prefaced = c, true
	c.nextID, c.peerStreams = 1, unlimitedStreams
	out := c.output()
	out.b = append(out.b, preface...)
	c.hello(setting{settingEnablePush, 0})
	c.keepAlive(cfg.PingInterval, cfg.PingTimeout)
	c.mu.Lock()
	c.kick()
	c.mu.Unlock()
	go func() {
		_ = c.readLoop()
		if !c.settled {
			close(c.settledC)
		}
		close(c.done)
	}()
	return c
}

// Settled returns a channel that is closed when the first SETTINGS of the server
// have arrived or the connection has ended.
func (c *ClientConn) Settled() <-chan struct{} { return c.settledC }

// Done returns a channel that is closed when the connection has ended.
func (c *ClientConn) Done() <-chan struct{} { return c.done }

// Err returns why the connection cannot be used: it has ended, or the server has
// sent a GOAWAY with an error.
func (c *ClientConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goAwayOf != nil {
		return c.goAwayOf
	}
	return c.err
}

// Usable reports whether the connection accepts requests, now or when a stream
// has ended.
func (c *ClientConn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usable()
}

func (c *ClientConn) usable() bool {
	return c.err == nil && !c.leaving && c.nextID <= maxStreamID-2*unlimitedStreams
}

// Active returns the number of streams in progress and of reserved ones.
func (c *ClientConn) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots
}

// Limit returns how many streams the server allows.
func (c *ClientConn) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit()
}

func (c *ClientConn) limit() int {
	if c.greeted {
		return c.peerStreams
	}
	return unsettledStreams
}

// Reserve takes a slot for one RoundTrip. It returns false if all are taken or the
// connection accepts no requests.
func (c *ClientConn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() || c.slots >= c.limit() {
		return false
	}
	c.slots++
	return true
}

// Release returns a slot that is not used.
func (c *ClientConn) Release() {
	c.mu.Lock()
	c.freeSlot()
	c.unlock()
}

// Drain accepts no more requests. The connection ends after the last stream.
func (c *ClientConn) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.err != nil {
		return
	}
	c.leaving, c.closing = true, true
	c.output().goAway(0, message.CodeNo, "")
	c.kick()
}

// Close ends the connection and its streams.
func (c *ClientConn) Close() error {
	c.fail(errConnClosed)
	return nil
}

// goAway handles a GOAWAY: the server has not processed streams above last.
func (c *ClientConn) goAway(last, code uint32, debug []byte) error {
	if err := c.glitch(glitchControl); err != nil {
		return err
	}
	var refused []*stream
	c.mu.Lock()
	c.leaving, c.closing, c.changed = true, true, true
	if code != message.CodeNo {
		c.goAwayOf = &ConnError{Code: code, Remote: true, Reason: string(debug[:min(len(debug), 128)])}
	}
	for id, st := range c.streams {
		if id > last {
			refused = append(refused, st)
		}
	}
	c.kick()
	c.unlock()
	for _, st := range refused {
		st.end(&message.ResetError{Code: message.CodeRefusedStream, Remote: true})
	}
	return nil
}
