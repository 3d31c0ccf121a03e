package h2

import (
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	smallRead   = 1 << 10                // size of the read buffer of an idle connection
	writeChunk  = 64 << 10               // of one Write, so that its progress can be observed
	lastWrite   = time.Second            // limit for writing the final GOAWAY
	lingerTime  = 500 * time.Millisecond // for the peer to read what was written last
	lingerBytes = 256 << 10
	resetMemory = 64 // streams that were reset and may still receive frames
)

// conn is a connection of either role.
type conn struct {
	nc     net.Conn
	server *ServerConn // one of these is nil
	client *ClientConn
	limits
	clock clock

	// Of the reader.
	small    [smallRead]byte
	large    *buffer // replaces small while much arrives
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
	hasWriter   bool
	retiring    bool // an idle server keeps no writer
	wake        chan struct{}
	sendWindow  int64
	peerWindow  int64 // initial window of streams
	peerFrame   int
	peerStreams int
	peerConnect bool
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
}

// limits are those of the receiving side.
type limits struct {
	maxStreams, maxFrame, maxHeader int
	streamWindow, connWindow        int64
	maxResets                       int
}

// clock reads the time once for all frames of a Read.
type clock struct{ now time.Time }

func (c *clock) time() time.Time {
	if c.now.IsZero() {
		c.now = time.Now()
	}
	return c.now
}

func orDefault(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

func makeLimits(maxStreams, maxFrame, maxHeader, streamWindow, connWindow, maxResets int) limits {
	return limits{
		maxStreams:   orDefault(maxStreams, defaultStreams),
		maxFrame:     min(max(maxFrame, minMaxFrame), maxMaxFrame),
		maxHeader:    min(orDefault(maxHeader, defaultHeaders), 16<<20),
		streamWindow: int64(min(max(orDefault(streamWindow, 256<<10), minMaxFrame), maxWindow)),
		connWindow:   int64(min(max(orDefault(connWindow, 1<<20), defaultWindow), maxWindow)),
		maxResets:    maxResets,
	}
}

func (c *conn) init(nc net.Conn, l limits) {
	c.nc, c.limits = nc, l
	c.in = c.small[:]
	c.dec, c.enc = newDecoder(), newEncoder()
	c.recvLeft = l.connWindow
	c.started = time.Now()
	c.streams = make(map[uint32]*stream)
	c.wake = make(chan struct{}, 1)
	c.sendWindow, c.peerWindow, c.peerFrame = defaultWindow, defaultWindow, minMaxFrame
	c.glitches.limit, c.resets.limit = maxGlitches, l.maxResets
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

// output returns the buffer of frames to be written, with mu held.
func (c *conn) output() *buffer {
	if c.out == nil {
		c.out = newBuffer(mediumBuffer)
	}
	return c.out
}

// kick makes the writer write what is queued, with mu held.
func (c *conn) kick() {
	if c.writing || c.wake == nil {
		return
	}
	if !c.hasWriter {
		c.hasWriter = true
		go c.writeLoop(c.wake)
	}
	c.writing = true
	c.wake <- struct{}{}
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

// writeLoop writes what is queued when it is woken.
func (c *conn) writeLoop(wake <-chan struct{}) {
	for range wake {
		runtime.Gosched() // goroutines that are ready add to the same Write
		failed := false
		c.mu.Lock()
		for c.out != nil && c.err == nil {
			out := c.out
			c.out, c.lastDataID = nil, 0
			c.mu.Unlock()
			err := c.write(out.b)
			out.release()
			c.mu.Lock()
			if err != nil {
				failed = true
				if c.err == nil {
					c.err = err
				}
			}
			c.wakeBlocked()
		}
		c.writing = false
		done := c.err == nil && c.closing && c.quiet()
		retired := c.retiring
		if retired {
			c.hasWriter = false
		}
		c.mu.Unlock()
		switch {
		case failed:
			_ = c.nc.Close()
		case done:
			c.halfClose()
		}
		if retired {
			return
		}
	}
}

// write writes all of b.
func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		c.writes.Add(1)
		_, err := c.nc.Write(b[:n])
		c.writes.Add(1)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// quiet reports whether no stream is in progress, with mu held.
func (c *conn) quiet() bool {
	return len(c.streams) == 0 && (c.server == nil || c.server.handlers == 0) && (c.client == nil || c.slots == 0)
}

// closeIfQuiet makes the writer close a connection that is closing, with mu held.
func (c *conn) closeIfQuiet() {
	if c.closing && c.quiet() {
		c.kick()
	}
}

// halfClose ends the sending side, so that the peer reads all before the end.
// The reader closes the connection when the peer has closed it, or soon.
func (c *conn) halfClose() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if c.client != nil || !ok || half.CloseWrite() != nil {
		c.fail(errConnClosed)
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
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

// readLoop handles what the peer sends until the connection ends.
func (c *conn) readLoop() error {
	for {
		n, err := c.nc.Read(c.in[c.w:])
		c.w += n
		c.reads.Add(1)
		c.clock.now = time.Time{}
		if failed := c.process(); failed != nil {
			c.endBatch()
			return c.end(failed)
		}
		c.endBatch()
		if err != nil && !c.trimmed(err) {
			return c.end(err)
		}
		c.resize(n)
	}
}

// resize chooses the buffer of the next Read by the size of the last one.
func (c *conn) resize(n int) {
	rest := c.w - c.r
	need := frameHead
	if rest >= frameHead {
		need += frameLength(c.in[c.r:])
	}
	switch {
	case c.large == nil && (n >= smallRead/2 || need > smallRead):
		c.large = newBuffer(largeBuffer)
		to := c.large.b[:cap(c.large.b)]
		c.w = copy(to, c.in[c.r:c.w])
		c.in, c.r = to, 0
		if c.server != nil {
			c.server.trim.Store(true)
		}
	case c.large != nil && rest == 0 && (n < smallRead/2 || c.client != nil && c.isIdle()):
		c.dropLarge()
	case rest == 0:
		c.r, c.w = 0, 0
	case len(c.in)-c.r < need || len(c.in)-c.w < smallRead/2:
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
}

// dropLarge replaces the large read buffer, which is empty.
func (c *conn) dropLarge() {
	c.large.release()
	c.large, c.in, c.r, c.w = nil, c.small[:], 0, 0
}

func (c *conn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) == 0
}

// trimmed reports whether the end of a Read was caused by a request to release
// the large buffer.
func (c *conn) trimmed(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	if !ok || !timeout.Timeout() {
		return false
	}
	c.mu.Lock()
	trim := c.server != nil && c.server.trimming && c.stop == nil && c.err == nil
	if trim {
		c.server.trimming = false
		by := time.Time{}
		if c.closing { // the writer sends the last GOAWAY
			by = time.Now().Add(lingerTime)
		}
		_ = c.nc.SetReadDeadline(by)
	}
	c.mu.Unlock()
	if trim && c.large != nil && c.r == c.w {
		c.dropLarge()
	}
	return trim
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
	case err == io.EOF: //nolint:errorlint // Read returns it as it is
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
	close(c.wake)
	c.wake = nil
	c.out.release()
	c.out, c.lastDataID = nil, 0
	c.changed = true
	c.unlock()
	_ = c.nc.Close()
	for _, st := range all {
		st.failReceive(err)
	}
	if c.large != nil {
		c.dropLarge()
	}
	c.block.buf.release()
	c.block.buf = nil
	return err
}

// linger reads and drops input until the peer closes the connection, because a
// close with unread input would reset it before the peer has read the GOAWAY.
func (c *conn) linger() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, c.nc, lingerBytes)
	}
}

func frameLength(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

// endBatch starts the new streams and wakes those for which frames arrived.
func (c *conn) endBatch() {
	for i, st := range c.touched {
		c.touched[i] = nil
		st.touched = false
		st.readable.Broadcast()
	}
	c.touched = c.touched[:0]
	for i, s := range c.starting {
		c.starting[i] = nil
		c.server.dispatch(s)
	}
	c.starting = c.starting[:0]
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

func (c *conn) touch(st *stream) {
	if !st.touched {
		st.touched = true
		c.touched = append(c.touched, st)
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

// wasReset reports whether the stream of a server was refused after a GOAWAY, or
// is one of the last that were reset here. The peer may not yet know it.
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

func (c *conn) freeSlot() {
	if c.client != nil && (c.slots >= c.client.limit() || c.closing) {
		c.changed = true
	}
	c.slots--
	c.closeIfQuiet()
}

// endBlock completes the header block that begins at from in out: a HEADERS
// frame, for which there is room before it, and CONTINUATION frames.
func (c *conn) endBlock(from int, id uint32, end bool) {
	out := c.out
	flags := byte(flagEndHeaders)
	if end {
		flags |= flagEndStream
	}
	n := len(out.b) - from
	if n <= c.peerFrame {
		appendFrame(out.b[from-frameHead:from-frameHead], n, frameHeaders, flags, id)
		return
	}
	block := append([]byte(nil), out.b[from:]...)
	out.b = out.b[:from-frameHead]
	typ := byte(frameHeaders)
	flags &^= flagEndHeaders
	for len(block) > 0 {
		n := min(len(block), c.peerFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		out.frame(n, typ, flags, id)
		out.b = append(out.b, block[:n]...)
		block = block[n:]
		typ, flags = frameContinuation, 0
	}
}

// beginBlock leaves room for the head of a HEADERS frame, with mu held.
func (c *conn) beginBlock() (out *buffer, from int) {
	out = c.output()
	out.b = append(out.b, make([]byte, frameHead)...)
	from = len(out.b)
	out.b = c.enc.start(out.b)
	return out, from
}

// queueTrailers ends a stream with trailers, or without them if trailer is empty.
// With mu held.
func (c *conn) queueTrailers(st *stream, trailer http.Header) {
	if !hasTrailers(trailer) {
		c.queueData(st, nil, true)
		return
	}
	out, from := c.beginBlock()
	for key, values := range trailer {
		if !validTrailer(key) {
			continue
		}
		for _, value := range values {
			if validValue(value) {
				out.b = c.enc.field(out.b, byCanonical[key], key, value)
			}
		}
	}
	c.endBlock(from, st.id, true)
	st.endSent()
}
