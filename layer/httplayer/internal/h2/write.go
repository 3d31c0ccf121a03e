package h2

import (
	"net/http"
	"runtime"
	"time"
)

const writeChunk = 64 << 10 // of one Write, so that its progress can be observed

// output returns the buffer of frames to be written, with mu held.
func (c *conn) output() *buffer {
	if c.out == nil {
		c.out = newBuffer(mediumBuffer)
	}
	return c.out
}

// kick starts the writer, with mu held. The writer also closes a connection that
// is closing.
func (c *conn) kick() {
	if !c.writing && c.err == nil && (c.out != nil || c.closing) {
		c.writing = true
		go c.writer()
	}
}

// writeQueued writes until nothing is queued.
func (c *conn) writeQueued() {
	runtime.Gosched() // goroutines that are ready add to the same Write
	var failed error
	c.mu.Lock()
	for c.out != nil && c.err == nil {
		out := c.out
		c.out, c.lastDataID = nil, 0
		c.mu.Unlock()
		failed = c.write(out.b)
		out.release()
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

// wakeBlocked wakes the senders that wait for the connection, with mu held.
func (c *conn) wakeBlocked() {
	for i, st := range c.blocked {
		c.blocked[i] = nil
		st.blocked = false
		st.sendable.Signal()
	}
	c.blocked = c.blocked[:0]
}

// beginBlock begins a header block, with mu held. It leaves room for the head of
// a HEADERS frame.
func (c *conn) beginBlock() (out *buffer, from int) {
	out = c.output()
	out.b = append(out.b, make([]byte, frameHead)...)
	from = len(out.b)
	out.b = c.enc.start(out.b)
	return out, from
}

// endBlock completes the header block that begins at from: a HEADERS frame, and
// CONTINUATION frames.
func (c *conn) endBlock(st *stream, from int, end bool) {
	out := c.out
	flags := byte(0)
	if end {
		flags = flagEndStream
		st.endSent()
	}
	n := len(out.b) - from
	if n <= c.peerFrame {
		appendFrame(out.b[from-frameHead:from-frameHead], n, frameHeaders, flags|flagEndHeaders, st.id)
		return
	}
	block := append([]byte(nil), out.b[from:]...)
	out.b = out.b[:from-frameHead]
	for typ := byte(frameHeaders); len(block) > 0; typ, flags = frameContinuation, 0 {
		n := min(len(block), c.peerFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		out.frame(n, typ, flags, st.id)
		out.b = append(out.b, block[:n]...)
		block = block[n:]
	}
}

// queueTrailers ends a stream with trailers, or without them if there are none.
// With mu held.
func (c *conn) queueTrailers(st *stream, trailer http.Header) {
	if !hasTrailers(trailer) {
		c.queueData(st, nil, true)
		return
	}
	out, from := c.beginBlock()
	for key, values := range trailer {
		n := byCanonical[key]
		if !validTrailer(n, key) {
			continue
		}
		for _, value := range values {
			if validValue(value) {
				out.b = c.enc.field(out.b, n, key, value)
			}
		}
	}
	c.endBlock(st, from, true)
}

// queueData queues as much of p as the windows and the output allow, and the end
// of the stream if all was queued. It returns the number of bytes. With mu held.
func (c *conn) queueData(st *stream, p []byte, end bool) (n int) {
	c.output()
	for n < len(p) {
		k := int(min(int64(len(p)-n), c.sendWindow, st.sendWindow, int64(c.peerFrame)))
		if k <= 0 || len(c.out.b) > maxQueuedData {
			return n
		}
		c.appendData(st, p[n:n+k])
		c.sendWindow -= int64(k)
		st.sendWindow -= int64(k)
		st.stalled = 0
		n += k
	}
	if !end {
		return n
	}
	if !c.isLastData(st) {
		c.appendData(st, nil)
	}
	c.out.b[c.lastData+4] |= flagEndStream
	c.lastDataID = 0
	st.endSent()
	return n
}

// isLastData reports whether a DATA frame of st is the last frame of the output.
func (c *conn) isLastData(st *stream) bool {
	return c.lastDataID == st.id && c.lastData+frameHead+frameLength(c.out.b[c.lastData:]) == len(c.out.b)
}

// appendData appends p to the last frame if it is DATA of st and has room, else
// it appends a frame.
func (c *conn) appendData(st *stream, p []byte) {
	c.out = c.out.grown(frameHead + len(p))
	out := c.out
	if len(p) > 0 && c.isLastData(st) {
		head := out.b[c.lastData:]
		if n := frameLength(head) + len(p); n <= c.peerFrame {
			head[0], head[1], head[2] = byte(n>>16), byte(n>>8), byte(n)
			out.b = append(out.b, p...)
			return
		}
	}
	c.lastData, c.lastDataID = len(out.b), st.id
	out.frame(len(p), frameData, 0, st.id)
	out.b = append(out.b, p...)
}

// failure returns why the stream cannot send, with the mu of the connection held.
func (st *stream) failure() error {
	if st.sendErr != nil {
		return st.sendErr
	}
	return st.c.err
}

// endSent notes that END_STREAM is queued, with the mu of the connection held.
func (st *stream) endSent() {
	st.sentEnd = true
	if st.gotEnd {
		st.c.remove(st)
	}
}

// waitSendable waits until more can be queued, with the mu of the connection held.
func (st *stream) waitSendable() {
	c := st.c
	c.kick()
	if st.sendWindow > 0 && !st.blocked {
		st.blocked = true
		c.blocked = append(c.blocked, st)
	}
	st.waiting = true
	st.sendable.Wait()
	st.waiting = false
}

// send queues all of p, and waits for windows and for the writer. Large data is
// written soon, small data with the next flush.
func (st *stream) send(p []byte) (n int, err error) {
	const flushed = 4 << 10
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := st.failure(); err != nil {
			return n, err
		}
		n += c.queueData(st, p[n:], false)
		if n == len(p) {
			if c.isLastData(st) && frameLength(c.out.b[c.lastData:]) >= flushed {
				c.kick()
			}
			return n, nil
		}
		st.waitSendable()
	}
}
