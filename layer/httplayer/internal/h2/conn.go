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
	lastRead    = time.Second // time limit for reading what has arrived before a failed Write
)

// conn is what [ServerConn] and [ClientConn] share. The first group of fields belongs to the
// reader, which is the goroutine that reads frames; mu guards the group after it.
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
	touched  []*stream       // streams that have received something since the last endBatch, which wakes them
	starting []*serverStream // new streams that endBatch starts
	received int64           // bytes for the next WINDOW_UPDATE of the connection, at most connWindow
	glitches bucket
	resets   bucket
	started  time.Time

	lastRead atomic.Int64  // time of the last Read since started, in ns; only with keepAlive
	answered atomic.Uint32 // number of final responses that have begun
	moved    atomic.Int64  // bytes of DATA received and queued since glitch last decreased its count
	grown    atomic.Int64  // bytes by which all stream windows exceed their initial size
	rtt      atomic.Int64  // round-trip time of the first SETTINGS, in ns; 0 before
	writes   sweep.Wait    // measures how long each Write waits
	passed   atomic.Int64  // bytes that were passed to Write, without those that a failed Write did not accept

	mu          sync.Mutex
	err         error // reason for which the connection ended; nil before
	streams     map[uint32]*stream
	enc         encoder
	out         *message.Buffer // queued frames; may be nil
	lastData    int             // offset in out of the last DATA frame, if lastDataID is not 0
	lastDataID  uint32
	writing     bool // the writer goroutine runs
	writer      func()
	written     sync.WaitGroup // the writer goroutine
	taken       int64          // bytes that the writer has taken from out
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
	changed     bool       // there may be more or less room, so that unlock must call the client's Changed function
	alive       *keepalive // nil if no PINGs are sent
}

// limits are the limits that this side sets for the peer in SETTINGS.
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

// init prepares c for the connection nc. The windows and the frame size are those of the protocol until
// SETTINGS change them.
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

// hello queues the first SETTINGS frame. It consists of the given settings, which depend on the
// side, and of the limits for windows, headers and frames in c.limits. hello also enlarges the
// connection's receive window to c.connWindow, which no setting can do.
func (c *conn) hello(list ...setting) {
	list = append(list, setting{settingInitialWindowSize, uint32(c.streamWindow)},
		setting{settingMaxHeaderListSize, uint32(c.maxHeader)})
	if c.maxFrame != minMaxFrame {
		list = append(list, setting{settingMaxFrameSize, uint32(c.maxFrame)})
	}
	c.queueSettings(list...)
	if increment := c.connWindow - defaultWindow; increment > 0 {
		c.queueWindowUpdate(0, increment)
	}
}

// unlock unlocks mu. Functions that lock mu and may change what a user of the client can see, such as free slots,
// end with unlock instead of mu.Unlock. If something of that has changed (c.changed), unlock calls
// ClientConfig.Changed, which must be called without locks.
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

// fail ends the connection with the error err, unless it already has one. It only closes the
// network connection. The reader's Read then fails, and the reader ends the streams.
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
		if c.alive != nil {
			c.lastRead.Store(int64(time.Since(c.started)))
		}
		// The bytes are processed even if Read failed, because they may hold a complete response.
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

// makeRoom moves the unprocessed bytes to the start of the read buffer, to make room for the next
// Read. It replaces the small buffer with a large one if the small one is full or too small for
// the next frame. It returns to the small buffer if all bytes are processed and the last Read has
// not filled the large one.
func (c *conn) makeRoom() {
	rest := c.in[c.r:c.w]
	full := c.w == len(c.in)
	// need is the size of the next frame, or of its header as long as that is incomplete.
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

// endBatch completes the handling of one Read's frames. It wakes the streams that received
// something and starts the new streams. It sends a WINDOW_UPDATE once the received bytes amount
// to a quarter of the connection window.
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
	// The connection may now be idle, and must not keep an ended stream in memory.
	c.found = nil
	if c.received >= c.connWindow/4 {
		c.mu.Lock()
		c.queueWindowUpdate(0, c.received)
		c.kick()
		c.mu.Unlock()
		c.received = 0
	}
}

// touch makes endBatch wake the goroutine that reads st's body or waits for its response. A stream
// is woken once for all frames of one Read.
func (c *conn) touch(st *stream) {
	if !st.touched {
		st.touched = true
		c.touched = append(c.touched, st)
	}
}

// end closes the connection and ends its streams, after the reader has got err from Read or has found a
// mistake of the peer. It first sends a GOAWAY if this side detected an error. It returns the reason of
// the end, which may be an earlier one, or the cause of err.
func (c *conn) end(err error) error {
	c.mu.Lock()
	// The first reason counts. The other cases replace what Read has returned by what caused it.
	switch {
	case c.err != nil:
		err = c.err
	// The deadline is that of Sweep: halfClose also sets one, but only while closing is true, and so does
	// the writer after an error, but then c.err is set.
	case !c.closing && errors.Is(err, os.ErrDeadlineExceeded):
		err = errHeaderTimeout
	case c.client != nil && c.client.goAwayOf != nil:
		err = c.client.goAwayOf
	case err == io.EOF: //nolint:errorlint // Read returns exactly this value
		err = errPeerClosed
	}
	// If this side detected the error, the peer should learn the reason. The GOAWAY is written
	// before the network connection is closed, and Linger drops some input, because closing with
	// unread input would reset the connection and could destroy the GOAWAY on its way.
	if goAway, ok := errors.AsType[*ConnError](err); ok && !goAway.Remote && c.err == nil {
		c.queueGoAway(c.lastStream, goAway.Code, goAway.Reason)
		c.kick()
		c.err = err
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWrite))
		c.mu.Unlock()
		c.written.Wait() // the writer needs mu; when it ends, it has sent the GOAWAY or failed
		message.Linger(c.nc, message.LingerTime, lingerBytes)
		c.mu.Lock()
	}
	if c.err == nil {
		c.err = err
	}
	streams := c.streams
	c.streams = make(map[uint32]*stream)
	for _, st := range streams {
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
	c.changed = true // the client's owner learns from unlock that the connection is of no use any more
	c.unlock()
	_ = c.nc.Close()
	if c.client != nil {
		// Close ends a Write in progress. Only then is it known how many bytes were passed to the network, by which
		// lossError decides whether a request may be sent again.
		c.written.Wait()
	}
	// The streams are failed without mu, because failReceive locks a stream's mutex and cancels
	// contexts.
	for _, st := range streams {
		st.failReceive(st.lossError(err))
	}
	c.large.Release()
	c.large, c.in = nil, nil
	c.block.buf.Release()
	c.block.buf = nil
	return err
}

// find returns the open stream with the given ID, or nil. Only the reader calls it. Consecutive
// frames often belong to one stream, so find remembers the last stream and usually needs no lock.
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

// unopened reports whether the stream with the given ID has never been opened. An even ID never is,
// because only clients open streams here. A frame on such a stream is a protocol error.
func (c *conn) unopened(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id%2 == 0 || id >= c.nextID
}

// queueReset queues an RST_STREAM frame with the given error code, and starts the writer. The
// caller holds mu.
func (c *conn) queueReset(id, code uint32) {
	c.queueControl(frameRSTStream, 0, id, code)
	c.resetCount++
	c.kick()
}

// hasReset reports whether frames of closed streams must be ignored. The peer may send them until it has
// read this side's RST_STREAM or final GOAWAY. hasReset does not remember the streams, and therefore
// remains true.
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

// slotFreed is called when a stream or a reserved slot has ended. If the connection is closing, it
// starts the writer, which closes the connection when all streams have ended. The caller holds mu.
func (c *conn) slotFreed() {
	// The connection was full, or may now be closed: both change what the methods of the client
	// return.
	if c.client != nil && (c.client.active()+1 >= c.client.limit() || c.closing) {
		c.changed = true
	}
	if c.closing {
		c.kick()
	}
}

const defaultPingTimeout = 20 * time.Second

// keepalive is the state for sending PINGs to a peer that was silent for some time.
type keepalive struct {
	interval, timeout time.Duration
	whileIdle         bool // also without open streams and unsent output
	timer             *time.Timer
	pinged            bool          // a PING was sent
	sent              time.Duration // time of the last PING since conn.started
	lastRead          int64         // value of conn.lastRead at the last PING
}

// keepAlive starts the timer for PINGs, unless interval is 0. The peer receives a PING when it has
// sent nothing for an interval. If it then sends nothing for timeout, the connection ends. A
// client without open streams and unsent output sends no PING, unless whileIdle is true. Call
// keepAlive before readLoop.
func (c *conn) keepAlive(interval, timeout time.Duration, whileIdle bool) {
	if interval <= 0 {
		return
	}
	if timeout <= 0 {
		timeout = defaultPingTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A new connection counts as heard of, so that the first PING is not due before an interval has passed.
	c.lastRead.Store(int64(time.Since(c.started)))
	c.alive = &keepalive{interval: interval, timeout: timeout, whileIdle: whileIdle, timer: time.AfterFunc(interval, c.checkAlive)}
}

// checkAlive is called by the timer. It sends a PING if the peer has been silent for an interval,
// ends the connection if the last PING was not followed by any frame in time, and sets the timer
// again.
func (c *conn) checkAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.alive
	if c.err != nil {
		return
	}
	now, lastRead := time.Since(c.started), c.lastRead.Load()
	// Nothing was received since the PING.
	if k.pinged && lastRead == k.lastRead {
		if remaining := k.timeout - (now - k.sent); remaining > 0 {
			k.timer.Reset(min(remaining, k.interval))
			return
		}
		// On a new goroutine, because fail locks mu.
		go c.fail(errPingTimeout)
		return
	}
	k.pinged = false
	next := k.interval - (now - time.Duration(lastRead)) // until the peer has been silent for an interval
	if next <= 0 {
		next = k.interval
		if k.whileIdle || c.client == nil || len(c.streams) > 0 || c.writing {
			k.pinged, k.sent, k.lastRead = true, now, lastRead
			c.queuePing(0, 0) // no flags: the peer must answer
			c.kick()
			next = min(k.timeout, k.interval) // a frame may arrive soon, and the next PING is due one interval later
		}
	}
	k.timer.Reset(next)
}
