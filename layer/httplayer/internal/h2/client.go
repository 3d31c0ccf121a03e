package h2

import (
	"net"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ClientConfig is the configuration that an endpoint's connections share. The zero value selects
// the defaults: windows of 256 KiB per stream and 1 MiB per connection, and no PING.
type ClientConfig struct {
	StreamWindow int
	ConnWindow   int
	Secure       bool // the scheme is https if the request specifies none

	// PingInterval enables PING frames. If the server sends nothing for PingInterval while
	// streams are open, the client sends a PING. The connection ends if the server then
	// sends nothing for PingTimeout. PingInterval 0 disables this, and PingTimeout 0 means
	// 20 s.
	PingInterval  time.Duration
	PingTimeout   time.Duration
	PingWhileIdle bool // also while no streams are open

	// Changed is called after SETTINGS, after a GOAWAY, when a slot becomes free on a full
	// connection, and when the connection ends. Usable, Limit, Reserve and Err may then return
	// something else than before. Drain and Close do not call Changed themselves. Changed is
	// called without locks and must not block.
	Changed func(c *ClientConn)
}

// ClientConn is the client side of a connection. It is safe for concurrent use. A slot is the
// permission to open one of the streams that the server allows at the same time.
type ClientConn struct {
	conn
	cfg      *ClientConfig
	settledC chan struct{} // closed when the server's first SETTINGS have arrived
	done     chan struct{} // closed when the connection has ended
	goAwayOf *ConnError    // last GOAWAY with an error code; guarded by mu
	served   bool          // a GOAWAY names a stream that the server has processed; guarded by mu
}

const unlimitedStreams = 1000 // if SETTINGS of the server do not have MAX_CONCURRENT_STREAMS

// NewClientConn returns the client side of the connection nc. It sends the preface and
// starts the reading goroutine.
func NewClientConn(nc net.Conn, cfg *ClientConfig) *ClientConn {
	c := &ClientConn{cfg: cfg, settledC: make(chan struct{}), done: make(chan struct{})}
	c.init(nc, newLimits(0, 0, 0, cfg.StreamWindow, cfg.ConnWindow)) // the default numbers of streams and sizes
	// Only a server reads a preface, so there is none to wait for.
	c.client, c.prefaced = c, true
	// The preface and the SETTINGS are queued here and sent in one Write by the writer, which kick
	// starts.
	c.peerStreams = unlimitedStreams
	out := c.output()
	out.B = append(out.B, preface...)
	c.hello(setting{settingEnablePush, 0})
	c.keepAlive(cfg.PingInterval, cfg.PingTimeout, cfg.PingWhileIdle)
	c.mu.Lock()
	c.kick()
	c.mu.Unlock()
	go func() {
		_ = c.readLoop()
		close(c.done)
	}()
	return c
}

// NetConn returns the connection to the server.
func (c *ClientConn) NetConn() net.Conn { return c.nc }

// Settled returns a channel that is closed when the server's first SETTINGS have arrived.
func (c *ClientConn) Settled() <-chan struct{} { return c.settledC }

// Done returns a channel that is closed when the connection has ended.
func (c *ClientConn) Done() <-chan struct{} { return c.done }

// Err returns the error that ended the connection, or nil while the connection is open.
func (c *ClientConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Usable reports whether the connection accepts new requests. It returns true even if all
// slots are taken, because a slot becomes free when a stream ends.
func (c *ClientConn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usable()
}

// usable reports whether the connection accepts new requests, also if all slots are taken. It becomes false
// long before the stream IDs are used up, because requests that have reserved a slot still need some. The
// caller holds mu.
func (c *ClientConn) usable() bool {
	return c.err == nil && !c.closing && c.nextID <= maxStreamID-2*unlimitedStreams
}

// Served reports whether the server has processed a request on this connection: it has sent a
// response, or a GOAWAY that names a stream. Otherwise the server may not speak HTTP/2 at all.
func (c *ClientConn) Served() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served || c.answered.Load() > 0
}

// Active returns the number of slots in use: those of open streams, and those that Reserve took for
// calls that have not begun.
func (c *ClientConn) Active() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active()
}

// active returns the number of slots in use: see Active. The caller holds mu.
func (c *ClientConn) active() int { return len(c.streams) + c.pending }

// Limit returns the number of streams that the server allows at the same time. It returns 0 while
// the server does not read what this side sends, because more requests would only add to the queued
// output.
func (c *ClientConn) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit()
}

// limit returns the number of streams that the server allows at the same time, or 0 while the server does
// not read. The caller holds mu.
func (c *ClientConn) limit() int {
	if c.queuedBytes() > maxQueuedOutput {
		return 0 // the server does not read
	}
	return c.peerStreams
}

// Reserve takes a slot for one call of RoundTrip. It returns false if all slots are taken
// or the connection accepts no new requests.
func (c *ClientConn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() || c.active() >= c.limit() {
		return false
	}
	c.pending++
	return true
}

// Release gives back a slot that Reserve took, if the caller does not call RoundTrip.
func (c *ClientConn) Release() {
	c.mu.Lock()
	c.pending--
	c.slotFreed()
	c.unlock() // may call Changed, because somebody may wait for the slot
}

// Drain makes Reserve return false, and RoundTrip fail with [message.ErrNotSent]. The connection closes
// after its last stream has ended.
func (c *ClientConn) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.err != nil {
		return
	}
	c.closing = true
	c.kick()
}

// Close closes the connection and ends its streams with an error.
func (c *ClientConn) Close() error {
	c.fail(errConnClosed)
	return nil
}

// goAway handles the server's GOAWAY. A stream with an ID above last ends with REFUSED_STREAM,
// because the server has not processed it. The connection closes after all other streams have
// ended.
func (c *ClientConn) goAway(last, code uint32, debug []byte) error {
	var refused []*stream
	c.mu.Lock()
	c.closing, c.changed = true, true
	// The server has seen all streams up to last, so it has processed something unless last is 0.
	c.served = c.served || last > 0
	if code != message.CodeNo {
		c.goAwayOf = &ConnError{Code: code, Remote: true, Reason: string(debug[:min(len(debug), 128)])}
	}
	// The refused streams are ended below, because stream.end locks mu.
	for id, st := range c.streams {
		if id > last {
			refused = append(refused, st)
		}
	}
	// The writer closes the connection if no stream is left.
	c.kick()
	c.unlock()
	for _, st := range refused {
		st.end(&message.ResetError{Code: message.CodeRefusedStream, Remote: true})
	}
	return c.glitch(glitchControl)
}
