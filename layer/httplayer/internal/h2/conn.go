package h2

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/rawio"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

const (
	lingerBytes = 256 << 10   // received bytes that are dropped before the connection is closed
	smallRead   = 328         // size of the read buffer of an idle connection; keeps a ServerConn below 1280 bytes
	lastWrite   = time.Second // time limit for writing the final GOAWAY
)

// conn has the common part of [ServerConn] and [ClientConn]. The first group of fields
// belongs to the reader, which is the goroutine that reads frames. The group after mu is
// guarded by mu.
type conn struct {
	nc     net.Conn
	io     io.ReadWriter // reads and writes nc
	server *ServerConn   // nil on a client
	client *ClientConn   // nil on a server
	limits

	// The fields up to started are used by the reader only.

	small    [smallRead]byte
	large    *message.Buffer // used instead of small while more input is expected; may be nil
	in       []byte          // small, or the memory of large
	r, w     int             // in[r:w] is unprocessed
	dec      decoder
	block    headerBlock
	prefaced bool            // the preface of the client was read
	found    *stream         // stream that find returned last, or that was opened last
	touched  []*stream       // streams that endBatch wakes
	starting []*serverStream // new streams that endBatch starts
	received int64           // bytes for the next WINDOW_UPDATE of the connection, at most connWindow
	glitches bucket
	resets   bucket
	started  time.Time

	reads    atomic.Uint32 // number of calls of Read
	answered atomic.Uint32 // number of final responses that have begun
	moved    atomic.Int64  // bytes of DATA received and queued since glitch last decreased its count
	grown    atomic.Int64  // bytes by which all stream windows exceed their initial size
	rtt      atomic.Int64  // round-trip time of the first SETTINGS, in ns; 0 before
	writes   sweep.Wait    // measures how long each Write waits

	mu          sync.Mutex
	err         error // reason for which the connection ended; nil before
	streams     map[uint32]*stream
	enc         encoder
	out         *message.Buffer // queued frames; may be nil
	lastData    int             // offset in out of the last DATA frame, if lastDataID is not 0
	lastDataID  uint32
	writing     bool // the writer goroutine runs
	writer      func()
	written     sync.WaitGroup // has the writer goroutine
	sendWindow  int64          // bytes that this side may still send
	peerWindow  int64          // initial send window of streams, set by the peer
	peerFrame   int
	peerStreams int
	blocked     []*stream  // streams that wait for room in out or for window in sendWindow
	resetCount  int        // number of streams that this side reset
	nextID      uint32     // lowest ID that the client has not used
	lastStream  uint32     // highest ID of a stream that a server accepted
	pending     int        // handlers that run on a server, or slots that Reserve took on a client
	settled     bool       // SETTINGS of the peer were received; only the reader writes it
	closing     bool       // no new streams are opened or accepted; closes after the last stream
	changed     bool       // unlock must call the Changed function of the client
	alive       *keepalive // nil if no PINGs are sent
}

// limits has the limits that this side sets for the peer in SETTINGS.
type limits struct {
	maxStreams, maxFrame, maxHeader int
	streamWindow, connWindow        int64
}

// newLimits returns the limits with the given values. A value of 0 selects the default. A
// value outside its valid range is set to the nearest valid value.
func newLimits(maxStreams, maxFrame, maxHeader, streamWindow, connWindow int) limits {
	return limits{
		maxStreams:   cmp.Or(maxStreams, defaultStreams),
		maxFrame:     min(max(maxFrame, minMaxFrame), maxMaxFrame),
		maxHeader:    min(cmp.Or(maxHeader, defaultHeaders), 16<<20),
		streamWindow: int64(min(max(cmp.Or(streamWindow, 256<<10), minMaxFrame), maxWindow)),
		connWindow:   int64(min(max(cmp.Or(connWindow, 1<<20), defaultWindow), maxWindow)),
	}
}

func (c *conn) init(nc net.Conn, l limits) {
	c.nc, c.io, c.limits = nc, rawio.New(nc), l
	c.in = c.small[:]
	c.writer = c.writeQueued // once, because a go statement with arguments allocates
	c.dec, c.enc = newDecoder(), newEncoder()
	c.started = time.Now()
	c.streams = make(map[uint32]*stream)
	c.nextID = 1
	c.sendWindow, c.peerWindow, c.peerFrame = defaultWindow, defaultWindow, minMaxFrame
	c.glitches.limit = maxGlitches
}

// hello queues the first SETTINGS, with the given settings and those of c.limits. It also
// enlarges the receive window of the connection to c.connWindow.
func (c *conn) hello(list ...setting) {
	list = append(list, setting{settingInitialWindowSize, uint32(c.streamWindow)},
		setting{settingMaxHeaderListSize, uint32(c.maxHeader)})
	if c.maxFrame != minMaxFrame {
		list = append(list, setting{settingMaxFrameSize, uint32(c.maxFrame)})
	}
	c.queueSettings(list...)
	if more := c.connWindow - defaultWindow; more > 0 {
		c.queueWindowUpdate(0, more)
	}
}

// unlock unlocks mu. If c.changed was set while mu was locked, it then calls the function
// Changed of the ClientConfig, and clears c.changed.
func (c *conn) unlock() {
	changed := c.changed
	c.changed = false
	c.mu.Unlock()
	if changed && c.client != nil && c.client.cfg.Changed != nil {
		c.client.cfg.Changed(c.client)
	}
}

// quiet reports whether no stream is open, no handler runs and no slot is reserved. The
// caller holds mu.
func (c *conn) quiet() bool { return len(c.streams) == 0 && c.pending == 0 }

// fail closes the connection with the reason err. The Read of the reader then fails, and
// the reader ends the streams.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	_ = c.nc.Close()
}

// readLoop reads and handles frames until the connection ends. It returns the reason of the
// end.
func (c *conn) readLoop() error {
	for {
		n, err := c.io.Read(c.in[c.w:])
		c.w += n
		c.reads.Add(1)
		failed := c.process()
		c.endBatch()
		if failed != nil {
			return c.end(failed)
		}
		if err != nil {
			return c.end(err)
		}
		c.makeRoom()
	}
}

// makeRoom moves the unprocessed bytes to the start of the read buffer, so that the next Read has
// room. It replaces the small buffer by a large one if the small one is full or too small for the
// next frame. It returns to the small buffer if all bytes are processed and the last Read has not
// filled the large one.
func (c *conn) makeRoom() {
	rest, full := c.in[c.r:c.w], c.w == len(c.in)
	need := frameHead
	if len(rest) >= frameHead {
		need += frameLength(rest)
	}
	old := c.large
	switch {
	case old == nil && (full || need > smallRead):
		c.large = message.GetBuffer(largeBuffer)
		c.in = c.large.B[:cap(c.large.B)]
	case old != nil && len(rest) == 0 && !full:
		c.large, c.in = nil, c.small[:]
		old.Release()
	}
	c.r, c.w = 0, copy(c.in, rest)
}

// endBatch completes the handling of the frames of one Read. It wakes the streams that received
// something and starts the new streams. It sends a WINDOW_UPDATE for the received bytes when they
// amount to a quarter of the window of the connection.
func (c *conn) endBatch() {
	for i, st := range c.touched {
		c.touched[i] = nil
		st.touched = false
		st.readable.Broadcast()
	}
	c.touched = c.touched[:0]
	if len(c.starting) > 0 {
		c.server.dispatch(c.starting)
		clear(c.starting)
		c.starting = c.starting[:0]
	}
	c.found = nil
	if c.received >= c.connWindow/4 {
		c.mu.Lock()
		c.queueWindowUpdate(0, c.received)
		c.kick()
		c.mu.Unlock()
		c.received = 0
	}
}

// touch records that st must be woken by endBatch.
func (c *conn) touch(st *stream) {
	if !st.touched {
		st.touched = true
		c.touched = append(c.touched, st)
	}
}

// end closes the connection and ends its streams. It first sends a GOAWAY if this side
// detected an error. It returns the reason of the end, which is err unless an earlier
// reason was recorded.
func (c *conn) end(err error) error {
	c.mu.Lock()
	switch {
	case c.err != nil:
		err = c.err
	case !c.closing && errors.Is(err, os.ErrDeadlineExceeded):
		err = errHeaderTimeout // of Sweep, because only halfClose also sets a deadline
	case c.client != nil && c.client.goAwayOf != nil:
		err = c.client.goAwayOf
	case err == io.EOF: //nolint:errorlint // Read returns exactly this value
		err = errPeerClosed
	}
	if goAway, ok := errors.AsType[*ConnError](err); ok && !goAway.Remote && c.err == nil {
		c.queueGoAway(c.lastStream, goAway.Code, goAway.Reason)
		c.kick()
		c.err = err
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWrite))
		c.mu.Unlock()
		c.written.Wait()
		message.Linger(c.nc, lingerBytes)
		c.mu.Lock()
	}
	if c.err == nil {
		c.err = err
	}
	all := c.streams
	c.streams = make(map[uint32]*stream)
	for _, st := range all {
		st.removed.Store(true)
		if st.sendErr == nil {
			st.sendErr = err
		}
		st.sendable.Broadcast()
	}
	c.out.Release()
	c.out, c.lastDataID = nil, 0
	if c.alive != nil {
		c.alive.timer.Stop()
	}
	c.changed = true
	c.unlock()
	_ = c.nc.Close()
	for _, st := range all {
		st.failReceive(err)
	}
	c.large.Release()
	c.large, c.in = nil, nil
	c.block.buf.Release()
	c.block.buf = nil
	return err
}

// find returns the open stream with the given ID, or nil. The reader calls it.
func (c *conn) find(id uint32) *stream {
	if st := c.found; st != nil && st.id == id && !st.removed.Load() {
		return st
	}
	c.mu.Lock()
	st := c.streams[id]
	c.mu.Unlock()
	c.found = st
	return st
}

// unopened reports whether the client has never used the stream ID id. A frame on such a
// stream is a protocol error.
func (c *conn) unopened(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id%2 == 0 || id >= c.nextID
}

// queueReset queues RST_STREAM. The caller holds mu.
func (c *conn) queueReset(id, code uint32) {
	c.queueControl(frameRSTStream, 0, id, code)
	c.resetCount++
	c.kick()
}

// hasReset reports whether frames of closed streams must be ignored. The peer may send them until it has
// read the RST_STREAM or the final GOAWAY of this side. hasReset does not remember the streams, and
// therefore remains true.
func (c *conn) hasReset() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing || c.resetCount > 0
}

// remove removes a stream that has ended from c.streams and frees its slot. The caller
// holds mu.
func (c *conn) remove(st *stream) {
	if st.removed.Swap(true) {
		return
	}
	delete(c.streams, st.id)
	c.slotFreed()
	if c.server != nil {
		c.server.phaseLocked()
	}
}

// slotFreed is called when a stream or the reservation of a slot has ended. If the connection is
// closing, it starts the writer, because the writer closes the connection when all streams have ended.
// The caller holds mu.
func (c *conn) slotFreed() {
	if c.client != nil && (c.client.active()+1 >= c.client.limit() || c.closing) {
		c.changed = true
	}
	if c.closing {
		c.kick()
	}
}

const defaultPingTimeout = 20 * time.Second

// keepalive is the state for sending PINGs to a peer that has sent nothing for some time.
type keepalive struct {
	interval, timeout time.Duration
	timer             *time.Timer
	reads             uint32 // value of conn.reads when the timer was set
	pinged            bool   // a PING was sent in the last interval
}

// keepAlive starts the timer for PINGs, unless interval is 0. If the peer sends nothing during an
// interval, it receives a PING. The PING follows at most two intervals after the last input. If the
// peer then sends nothing for the duration timeout, the connection ends. A client without open
// streams and without unsent output sends no PING.
func (c *conn) keepAlive(interval, timeout time.Duration) {
	if interval <= 0 {
		return
	}
	if timeout <= 0 {
		timeout = defaultPingTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive = &keepalive{interval: interval, timeout: timeout, timer: time.AfterFunc(interval, c.checkAlive)}
}

func (c *conn) checkAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.alive
	if c.err != nil {
		return
	}
	next, reads := k.interval, c.reads.Load()
	switch {
	case reads != k.reads || c.client != nil && len(c.streams) == 0 && !c.writing:
		k.pinged = false
	case k.pinged:
		go c.fail(errPingTimeout)
		return
	default:
		k.pinged = true
		c.queuePing(0, 0)
		c.kick()
		next = k.timeout
	}
	k.reads = reads
	k.timer.Reset(next)
}
