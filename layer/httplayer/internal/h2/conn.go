package h2

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	smallRead   = 2 << 10                // size of the read buffer that belongs to a connection
	lastWrite   = time.Second            // limit for writing the final GOAWAY
	lingerTime  = 500 * time.Millisecond // for the peer to read the last output
	lingerBytes = 256 << 10
	resetMemory = 64 // streams that were reset and may still receive frames
)

// conn is a connection of either role.
type conn struct {
	nc     net.Conn
	server *ServerConn // one of these is nil
	client *ClientConn
	limits

	// Of the reader.
	small    [smallRead]byte
	large    *buffer // replaces small while more input is expected than fits
	in       []byte  // small or the bytes of large
	r, w     int     // in[r:w] is unprocessed
	dec      decoder
	fields   []field
	block    headerBlock
	prefaced bool // the preface of a client was read
	settled  bool // the first SETTINGS was read
	lastID   uint32
	found    *stream // by the last find
	touched  []*stream
	starting []*serverStream
	received int64 // bytes to give back to the window of the connection
	recvLeft int64
	moved    int64 // useful bytes, for glitches
	glitches bucket
	resets   bucket
	started  time.Time

	reads    atomic.Uint32 // number of Reads
	answered atomic.Uint32 // final responses that were begun
	grown    atomic.Int64  // by which stream windows exceed their initial size
	rtt      atomic.Int64  // of the first SETTINGS, in ns
	writes   atomic.Uint32 // number of Writes that began and of those that returned

	mu          sync.Mutex
	err         error // the connection has ended
	stop        error // the reader has to end the connection with it
	streams     map[uint32]*stream
	enc         encoder
	out         *buffer // to be written
	lastData    int     // offset in out of a DATA frame of stream lastDataID
	lastDataID  uint32
	writing     bool
	writer      func()
	sendWindow  int64
	peerWindow  int64 // initial window of streams
	peerFrame   int
	peerStreams int
	blocked     []*stream // waiting for the connection
	ownResets   [resetMemory]uint32
	resetNext   int
	nextID      uint32
	lastStream  uint32 // that a server accepted
	slots       int    // open streams, and reserved ones of a client
	greeted     bool   // SETTINGS were received
	leaving     bool   // no new streams
	closing     bool   // to be closed after the last stream
	changed     bool   // the Changed function has to be called
	alive       keepalive
}

// limits are those of the receiving side.
type limits struct {
	maxStreams, maxFrame, maxHeader int
	streamWindow, connWindow        int64
}

// newLimits replaces limits of 0 by the defaults.
func newLimits(maxStreams, maxFrame, maxHeader, streamWindow, connWindow int) limits {
	or := func(n, otherwise int) int {
		if n <= 0 {
			return otherwise
		}
		return n
	}
	return limits{
		maxStreams:   or(maxStreams, defaultStreams),
		maxFrame:     min(max(maxFrame, minMaxFrame), maxMaxFrame),
		maxHeader:    min(or(maxHeader, defaultHeaders), 16<<20),
		streamWindow: int64(min(max(or(streamWindow, 256<<10), minMaxFrame), maxWindow)),
		connWindow:   int64(min(max(or(connWindow, 1<<20), defaultWindow), maxWindow)),
	}
}

func (c *conn) init(nc net.Conn, l limits) {
	c.nc, c.limits = nc, l
	c.in = c.small[:]
	c.writer = c.writeQueued // once, because a go statement with arguments allocates
	c.dec, c.enc = newDecoder(), newEncoder()
	c.recvLeft = l.connWindow
	c.started = time.Now()
	c.streams = make(map[uint32]*stream)
	c.sendWindow, c.peerWindow, c.peerFrame = defaultWindow, defaultWindow, minMaxFrame
	c.glitches.limit = maxGlitches
}

// hello queues the first SETTINGS.
func (c *conn) hello(list ...setting) {
	out := c.output()
	list = append(list, setting{settingInitialWindowSize, uint32(c.streamWindow)},
		setting{settingMaxHeaderListSize, uint32(c.maxHeader)})
	if c.maxFrame != minMaxFrame {
		list = append(list, setting{settingMaxFrameSize, uint32(c.maxFrame)})
	}
	out.settings(list...)
	if more := c.connWindow - defaultWindow; more > 0 {
		out.windowUpdate(0, more)
	}
}

// unlock unlocks mu and calls the Changed function of a client if it is due.
func (c *conn) unlock() {
	changed := c.changed
	c.changed = false
	c.mu.Unlock()
	if changed && c.client != nil && c.client.cfg.Changed != nil {
		c.client.cfg.Changed(c.client)
	}
}

// quiet reports whether no stream is in progress, with mu held.
func (c *conn) quiet() bool {
	return len(c.streams) == 0 && (c.server == nil || c.server.handlers == 0) && (c.client == nil || c.slots == 0)
}

// fail ends the connection at once. The reader ends its streams.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	_ = c.nc.Close()
}

// interrupt makes the reader end the connection with err.
func (c *conn) interrupt(err error) {
	c.mu.Lock()
	if c.stop == nil {
		c.stop = err
	}
	c.mu.Unlock()
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

// readLoop handles the input until the connection ends. It returns the reason.
func (c *conn) readLoop() error {
	for {
		n, err := c.nc.Read(c.in[c.w:])
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

// makeRoom prepares the buffer for the next Read. A large one is used while a
// Read fills the buffer or a frame is larger than the small one, so that an idle
// connection has a small one.
func (c *conn) makeRoom() {
	rest, full := c.in[c.r:c.w], c.w == len(c.in)
	need := frameHead
	if len(rest) >= frameHead {
		need += frameLength(rest)
	}
	old := c.large
	switch {
	case old == nil && (full || need > smallRead):
		c.large = newBuffer(largeBuffer)
		c.in = c.large.b[:cap(c.large.b)]
	case old != nil && len(rest) == 0 && !full:
		c.large, c.in = nil, c.small[:]
		old.release()
	}
	c.r, c.w = 0, copy(c.in, rest)
}

// endBatch starts the new streams and wakes those for which frames arrived.
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
		c.output().windowUpdate(0, c.received)
		c.kick()
		c.mu.Unlock()
		c.recvLeft += c.received
		c.received = 0
	}
}

// touch makes endBatch wake the stream.
func (c *conn) touch(st *stream) {
	if !st.touched {
		st.touched = true
		c.touched = append(c.touched, st)
	}
}

// end ends the connection and its streams. It returns the reason.
func (c *conn) end(err error) error {
	c.mu.Lock()
	switch {
	case c.err != nil:
		err = c.err
	case c.stop != nil:
		err = c.stop
	case c.client != nil && c.client.goAwayOf != nil:
		err = c.client.goAwayOf
	case err == io.EOF: //nolint:errorlint // Read returns exactly this value
		err = errPeerClosed
	}
	if goAway, ok := errors.AsType[*ConnError](err); ok && !goAway.Remote && c.err == nil {
		c.output().goAway(c.lastID, goAway.Code, goAway.Reason)
		out := c.out
		c.out, c.err = nil, err
		c.mu.Unlock()
		_ = c.nc.SetWriteDeadline(time.Now().Add(lastWrite))
		_ = c.write(out.b)
		out.release()
		c.linger()
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
	c.slots -= len(all)
	c.out.release()
	c.out, c.lastDataID = nil, 0
	c.alive.stop()
	c.changed = true
	c.unlock()
	_ = c.nc.Close()
	for _, st := range all {
		st.failReceive(err)
	}
	c.large.release()
	c.large, c.in = nil, nil
	c.block.buf.release()
	c.block.buf = nil
	return err
}

// linger drops input until the peer closes the connection, because a close with
// unread input would reset it before the peer has read the GOAWAY.
func (c *conn) linger() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, c.nc, lingerBytes)
	}
}

// find returns an open stream, or nil.
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

// unopened reports whether the stream has not been opened.
func (c *conn) unopened(id uint32) bool {
	if c.server != nil {
		return id%2 == 0 || id > c.lastID
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return id%2 == 0 || id >= c.nextID
}

// queueReset queues RST_STREAM, with mu held. The peer may send frames of the
// stream until it has read it.
func (c *conn) queueReset(id, code uint32) {
	c.output().rstStream(id, code)
	c.ownResets[c.resetNext%resetMemory] = id
	c.resetNext++
	c.kick()
}

// wasReset reports whether the stream of a server was ignored after a GOAWAY, or
// is one of the last that were reset here.
func (c *conn) wasReset(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving && id > c.lastStream || slices.Contains(c.ownResets[:], id)
}

// remove takes a stream out of the table, with mu held. The slot of a client is
// free then.
func (c *conn) remove(st *stream) {
	if st.removed.Swap(true) {
		return
	}
	st.shrink()
	delete(c.streams, st.id)
	c.freeSlot()
	if c.server != nil {
		c.server.phaseLocked()
	}
}

// freeSlot counts a stream less, with mu held.
func (c *conn) freeSlot() {
	if c.client != nil && (c.slots >= c.client.limit() || c.closing) {
		c.changed = true
	}
	c.slots--
	if c.closing {
		c.kick()
	}
}

const defaultPingTimeout = 20 * time.Second

// keepalive is the timer of a connection that sends a PING to a silent peer.
type keepalive struct {
	interval, timeout time.Duration
	timer             *time.Timer // nil: no PING
	reads             uint32      // when the timer was set
	pinged            bool
}

func (k *keepalive) stop() {
	if k.timer != nil {
		k.timer.Stop()
	}
}

// keepAlive starts the timer. A peer that sends nothing in an interval is sent a
// PING, and the connection ends after a timeout without input. The PING is sent
// at most two intervals after the last input. A client without streams sends none.
func (c *conn) keepAlive(interval, timeout time.Duration) {
	if interval <= 0 {
		return
	}
	if timeout <= 0 {
		timeout = defaultPingTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive = keepalive{interval: interval, timeout: timeout, timer: time.AfterFunc(interval, c.checkAlive)}
}

func (c *conn) checkAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.alive
	if c.err != nil {
		return
	}
	next, reads := k.interval, c.reads.Load()
	switch {
	case reads != k.reads || c.client != nil && len(c.streams) == 0:
		k.pinged = false
	case k.pinged:
		go c.fail(errPingTimeout)
		return
	default:
		k.pinged = true
		c.output().ping(0, keepalivePing)
		c.kick()
		next = k.timeout
	}
	k.reads = reads
	k.timer.Reset(next)
}
