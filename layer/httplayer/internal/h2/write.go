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

// output returns the buffer for frames to be sent. It takes a new one if needed. The caller
// holds mu.
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

// writeQueued is the function of the writer goroutine. It sends frames until none are
// queued. Then, if the connection is closing and all streams have ended, it closes the
// connection.
func (c *conn) writeQueued() {
	defer c.written.Done()
	runtime.Gosched() // goroutines that are ready add to the same Write
	var failed error
	c.mu.Lock()
	for c.out != nil && failed == nil { // also after c.err is set, because end queues a GOAWAY
		out := c.out
		c.out, c.lastDataID = nil, 0
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
		_, err := c.io.Write(b[:n])
		c.writes.End(n)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// halfClose ends the connection after the last output. A client closes it at once. A server
// closes only the sending half, so that the peer can read all output. The reader closes the
// connection when the peer has closed it, or after LingerTime.
func (c *conn) halfClose() {
	if c.client != nil || message.CloseWrite(c.nc) != nil {
		c.fail(errConnClosed)
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(message.LingerTime))
}

// wakeBlocked wakes the first of the streams that wait for room in the output and in the window of the
// connection, if both have room. It wakes only one stream, because most others would find no room. The
// woken stream later wakes the next one. The caller holds mu.
func (c *conn) wakeBlocked() {
	if len(c.blocked) > 0 && c.sendWindow > 0 && c.queuedBytes() <= maxQueuedData {
		c.blocked[0].sendable.Signal()
	}
}

// beginBlock begins a header block in the output, with room for the header of a HEADERS
// frame before it. It returns the output and the offset of the block. The caller holds mu.
func (c *conn) beginBlock() (out *message.Buffer, from int) {
	out = c.output()
	out.B = append(out.B, make([]byte, frameHead)...)
	from = len(out.B)
	out.B = c.enc.start(out.B)
	return out, from
}

// endBlock completes a header block. The argument from is the offset of the block in the output.
// endBlock makes the block a HEADERS frame, followed by CONTINUATION frames if the block is larger
// than the maximum frame size of the peer. If end is true, it sets END_STREAM. The caller holds mu.
func (c *conn) endBlock(st *stream, from int, end bool) {
	out := c.out
	flags := byte(0)
	if end {
		flags = flagEndStream
		st.endSent()
	}
	n := len(out.B) - from
	if n <= c.peerFrame {
		appendFrame(out.B[from-frameHead:from-frameHead], n, frameHeaders, flags|flagEndHeaders, st.id)
		return
	}
	block := append([]byte(nil), out.B[from:]...)
	out.B = out.B[:from-frameHead]
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

// queueTrailers ends the sending side of the stream. It queues the valid trailers, or only
// END_STREAM without a valid trailer. The caller holds mu.
func (c *conn) queueTrailers(st *stream, trailer http.Header) {
	if !hasTrailers(trailer) {
		if !c.isLastData(st) {
			c.appendData(st, nil)
		}
		c.out.B[c.lastData+4] |= flagEndStream
		c.lastDataID = 0
		st.endSent()
		return
	}
	out, from := c.beginBlock()
	for key, values := range trailer {
		if n := byCanonical[key]; validTrailer(n, key) {
			out.B = c.enc.values(out.B, n, key, values)
		}
	}
	c.endBlock(st, from, true)
}

// queueData queues as many bytes of p as the windows and the output permit, and returns
// their number. The caller holds mu.
func (c *conn) queueData(st *stream, p []byte) (n int) {
	for n < len(p) {
		k := int(min(int64(len(p)-n), c.sendWindow, st.sendWindow, int64(c.peerFrame)))
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

// appendData appends p to the output. If the last frame is a DATA frame of st and has room,
// appendData extends that frame. Otherwise it adds a DATA frame. The caller holds mu.
func (c *conn) appendData(st *stream, p []byte) {
	c.out = grown(c.output(), frameHead+len(p))
	out := c.out
	if len(p) > 0 && c.isLastData(st) {
		head := out.B[c.lastData:]
		if n := frameLength(head) + len(p); n <= c.peerFrame {
			head[0], head[1], head[2] = byte(n>>16), byte(n>>8), byte(n)
			out.B = append(out.B, p...)
			return
		}
	}
	c.lastData, c.lastDataID = len(out.B), st.id
	out.B = appendFrame(out.B, len(p), frameData, 0, st.id)
	out.B = append(out.B, p...)
}

// failure returns nil if the stream can send, and otherwise the reason why it cannot. The
// caller holds the mutex of the connection.
func (st *stream) failure() error {
	if st.sendErr != nil {
		return st.sendErr
	}
	return st.c.err
}

// endSent records that END_STREAM is queued. It removes the stream if both directions have
// ended. The caller holds the mutex of the connection.
func (st *stream) endSent() {
	st.sentEnd = true
	if st.gotEnd {
		st.c.remove(st)
	}
}

// waitSendable waits until the stream may be able to queue more bytes, or has failed. The
// caller must then check which of the two applies. The caller holds the mutex of the
// connection, which is unlocked during the wait.
func (st *stream) waitSendable() {
	c := st.c
	c.kick()
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
	c.wakeBlocked()
}

// send queues all bytes of p. It waits for the windows of the peer and for room in the
// output. If the last DATA frame of the stream has at least 4 KiB, send starts the writer.
// A smaller frame waits for the next Flush.
func (st *stream) send(p []byte) (n int, err error) {
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
