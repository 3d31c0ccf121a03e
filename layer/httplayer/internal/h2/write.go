package h2

import (
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// writeChunk is the largest size of one Write in bytes. Long output is written in parts, so
// that the sweeper can observe progress.
const writeChunk = 64 << 10

// output returns the buffer that collects frames until the writer takes it. The caller holds mu.
func (c *conn) output() *message.Buffer {
	if c.out == nil {
		c.out = message.GetBuffer(mediumBuffer)
	}
	return c.out
}

// kick starts the writer if frames are queued and the writer does not run. It also starts
// the writer if the connection is closing, because the writer closes the connection. The
// caller holds mu.
func (c *conn) kick() {
	if !c.writing && c.err == nil && (c.out != nil || c.closing) {
		c.writing = true
		c.written.Add(1)
		go c.writer()
	}
}

// writeQueued is the writer goroutine's function. It sends frames until none are queued. Then, if
// the connection is closing and all streams have ended, it closes the connection.
func (c *conn) writeQueued() {
	defer c.written.Done()
	runtime.Gosched() // goroutines that are ready add to the same Write
	var failed error
	c.mu.Lock()
	for c.out != nil && failed == nil { // also after c.err is set, because end queues a GOAWAY
		out := c.out
		// The writer owns out from now on, so that no queued DATA frame can be extended.
		c.out, c.lastDataID = nil, 0
		c.taken += int64(len(out.B))
		c.changed = c.changed || len(out.B) > maxQueuedOutput // see Limit
		c.unlock()
		failed = c.write(out.B)
		out.Release()
		c.mu.Lock()
		if failed != nil && c.err == nil {
			c.err = failed
		}
		c.wakeBlocked()
	}
	c.writing = false
	done := c.err == nil && c.closing && c.quiet()
	c.mu.Unlock()
	switch {
	case failed != nil && c.client != nil: // a response may have arrived before
		_ = c.nc.SetReadDeadline(time.Now().Add(lastRead))
	case failed != nil:
		_ = c.nc.Close()
	case done:
		c.halfClose()
	}
}

// write writes all of b to the connection, in parts of at most writeChunk bytes.
func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		c.writes.Begin()
		if c.server != nil {
			c.server.cfg.Sweeper.Wake() // an idle connection sends control frames
		}
		// Counted before Write returns, because the response may arrive before that.
		c.passed.Add(int64(n))
		accepted, err := c.io.Write(b[:n])
		c.writes.End(n)
		if err != nil {
			c.passed.Add(int64(accepted - n))
			return err
		}
		b = b[n:]
	}
	return nil
}

// halfClose ends the connection after the last output. A client closes it immediately. A server
// closes only the sending half, so that the peer can read all output. The reader closes the
// connection when the peer has closed it, or after LingerTime.
func (c *conn) halfClose() {
	if c.client != nil || message.CloseWrite(c.nc) != nil {
		c.fail(errConnClosed)
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(message.LingerTime))
}

// wakeBlocked wakes the first stream that waits for room in the output and in the connection
// window, if there is room in both. It wakes only one, because most others would find no room. The
// woken stream later wakes the next one. The caller holds mu.
func (c *conn) wakeBlocked() {
	if len(c.blocked) > 0 && c.sendWindow > 0 && c.queuedBytes() <= maxQueuedData {
		c.blocked[0].sendable.Signal()
	}
}

// beginBlock begins a header block in the output, with room for the header of a HEADERS frame
// before it. It returns the output and the block's offset. The caller holds mu.
func (c *conn) beginBlock() (out *message.Buffer, start int) {
	out = c.output()
	out.B = append(out.B, make([]byte, frameHead)...)
	start = len(out.B)
	out.B = c.enc.start(out.B)
	return out, start
}

// endBlock completes a header block that begins at the offset start in the output. endBlock makes
// the block a HEADERS frame, followed by CONTINUATION frames if the block is larger than the
// maximum frame size of the peer. If end is true, it sets END_STREAM. The caller holds mu.
func (c *conn) endBlock(st *stream, start int, end bool) {
	out := c.out
	flags := byte(0)
	if end {
		flags = flagEndStream
		st.endSent()
	}
	n := len(out.B) - start
	// beginBlock has left room for the header of this one frame.
	if n <= c.peerFrame {
		appendFrame(out.B[start-frameHead:start-frameHead], n, frameHeaders, flags|flagEndHeaders, st.id)
		return
	}
	// The block is too large for one frame, so it is cut, and a frame header put before each part.
	block := append([]byte(nil), out.B[start:]...)
	out.B = out.B[:start-frameHead]
	for typ := byte(frameHeaders); len(block) > 0; typ, flags = frameContinuation, 0 {
		n := min(len(block), c.peerFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		out.B = appendFrame(out.B, n, typ, flags, st.id)
		out.B = append(out.B, block[:n]...)
		block = block[n:]
	}
}

// queueTrailers ends the sending side of the stream. Valid trailers go into a HEADERS frame with
// END_STREAM. Without them, END_STREAM is set in the last DATA frame if it is still queued, or in an
// empty one. The caller holds mu.
func (c *conn) queueTrailers(st *stream, trailer http.Header) {
	if !hasTrailers(trailer) {
		if !c.isLastData(st) {
			c.appendData(st, nil)
		}
		c.out.B[c.lastData+4] |= flagEndStream // the flags byte in the frame's header
		c.lastDataID = 0
		st.endSent()
		return
	}
	out, start := c.beginBlock()
	for key, values := range trailer {
		if n := byCanonical[key]; validTrailer(n, key) {
			out.B = c.enc.values(out.B, n, key, values)
		}
	}
	c.endBlock(st, start, true) // with END_STREAM
}

// queueData queues as many bytes of p as both windows and the room in the output permit, and returns
// their number, which may be 0. The caller then calls waitSendable for the rest. The caller holds mu.
func (c *conn) queueData(st *stream, p []byte) (n int) {
	for n < len(p) {
		k := int(min(int64(len(p)-n), c.sendWindow, st.sendWindow, int64(c.peerFrame)))
		// A window may also be negative, after SETTINGS that have made it smaller.
		if k <= 0 || c.queuedBytes() > maxQueuedData {
			break
		}
		c.appendData(st, p[n:n+k])
		c.moved.Add(int64(k))
		c.sendWindow -= int64(k)
		st.sendWindow -= int64(k)
		st.stalled = 0
		n += k
	}
	return n
}

// isLastData reports whether the last queued frame is a DATA frame of st. The caller holds
// mu.
func (c *conn) isLastData(st *stream) bool {
	return c.lastDataID == st.id && c.lastData+frameHead+frameLength(c.out.B[c.lastData:]) == len(c.out.B)
}

// appendData queues p in DATA frames of st. It extends the last queued frame if that one is of st and
// has room, which saves frame headers for many small writes. Otherwise it adds a frame. The caller
// holds mu and has checked the windows.
func (c *conn) appendData(st *stream, p []byte) {
	c.out = grown(c.output(), frameHead+len(p))
	out := c.out
	if len(p) > 0 && c.isLastData(st) {
		head := out.B[c.lastData:]
		if n := frameLength(head) + len(p); n <= c.peerFrame {
			// The frame becomes longer, so its length is written again.
			head[0], head[1], head[2] = byte(n>>16), byte(n>>8), byte(n)
			out.B = append(out.B, p...)
			return
		}
	}
	c.lastData, c.lastDataID = len(out.B), st.id
	out.B = appendFrame(out.B, len(p), frameData, 0, st.id)
	out.B = append(out.B, p...)
}

// failure returns nil if the stream can send, and otherwise the reason why it cannot. The caller
// holds the connection's mutex.
func (st *stream) failure() error {
	if st.sendErr != nil {
		return st.sendErr
	}
	return st.c.err
}

// endSent records that END_STREAM is queued. It removes the stream if both directions have ended.
// The caller holds the connection's mutex.
func (st *stream) endSent() {
	st.sentEnd = true
	if st.gotEnd {
		st.c.remove(st)
	}
}

// waitSendable waits until the stream may be able to queue more bytes, or has failed. The caller
// must then check which of the two applies. The caller holds the connection's mutex, which is
// unlocked during the wait.
func (st *stream) waitSendable() {
	c := st.c
	c.kick() // the writer makes room in the output
	// If the stream's own window is open, the stream waits for something that all streams share: the
	// connection's window, or room in the output. wakeBlocked wakes such streams one after the other.
	blocked := st.sendWindow > 0
	if blocked {
		c.blocked = append(c.blocked, st)
	}
	st.waiting = true
	st.sendable.Wait()
	st.waiting = false
	if blocked {
		i := slices.Index(c.blocked, st)
		c.blocked = slices.Delete(c.blocked, i, i+1)
	}
	c.wakeBlocked() // this stream may leave room for the next one
}

// send queues all bytes of p. It waits for the peer's windows and for room in the output. If the
// stream's last DATA frame contains at least 4 KiB, send starts the writer. A smaller frame waits
// for the next Flush.
func (st *stream) send(p []byte) (n int, err error) {
	// A frame of this size is worth a Write of its own.
	const flushed = 4 << 10
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := st.failure(); err != nil {
			return n, err
		}
		n += c.queueData(st, p[n:])
		if n == len(p) {
			if c.isLastData(st) && frameLength(c.out.B[c.lastData:]) >= flushed {
				c.kick()
			}
			return n, nil
		}
		st.waitSendable()
	}
}
