package h2

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// headerBlock holds the received part of a header block until it is complete.
type headerBlock struct {
	id     uint32 // stream ID; 0 if no block has begun
	flags  byte   // flags of the HEADERS frame
	frames int    // number of CONTINUATION frames
	buf    *message.Buffer
}

// process handles the complete frames in the read buffer. An error ends the connection.
func (c *conn) process() error {
	if !c.prefaced {
		if ok, err := c.readPreface(); !ok {
			return err
		}
	}
	for {
		b := c.in[c.r:c.w]
		if len(b) < frameHead {
			break
		}
		n := frameLength(b)
		if n > c.maxFrame {
			return connError(message.CodeFrameSize, "frame larger than MAX_FRAME_SIZE")
		}
		if len(b) < frameHead+n {
			break
		}
		c.r += frameHead + n
		id := binary.BigEndian.Uint32(b[5:]) & maxStreamID
		if err := c.frame(b[3], b[4], id, b[frameHead:frameHead+n]); err != nil {
			// An error of one stream resets only that stream.
			if err := c.failStream(err); err != nil {
				return err
			}
		}
	}
	// A header that arrives in parts has a time limit, which begins or ends here.
	if c.server != nil {
		c.server.inBlock(c.block.id != 0 || c.partHeaders())
	}
	return nil
}

// readPreface takes the client's preface from the input. ok is false if it has not arrived completely.
// The error reports another protocol.
func (c *conn) readPreface() (ok bool, err error) {
	b := c.in[c.r:c.w]
	// What has arrived so far must be the beginning of the preface.
	n := min(len(b), len(preface))
	if string(b[:n]) != preface[:n] {
		return false, protocolError("invalid preface")
	}
	if n < len(preface) {
		return false, nil
	}
	c.r += n
	c.prefaced = true
	return true, nil
}

// partHeaders reports whether the input ends within a HEADERS or CONTINUATION frame, or within a frame
// header, which could be that of such a frame. A client that leaves it so may be a slowloris: see
// inBlock.
func (c *conn) partHeaders() bool {
	b := c.in[c.r:c.w]
	return len(b) > 0 && (len(b) < frameHead || b[3] == frameHeaders || b[3] == frameContinuation)
}

// failStream resets a stream if err, which a received frame caused, is a streamError. It returns
// any other err, and also an error if the peer has caused too many errors, resets or unread
// replies. What it returns ends the connection.
func (c *conn) failStream(err error) error {
	failed, ok := errors.AsType[*streamError](err)
	if !ok {
		return err
	}
	if err := c.glitch(glitchStream); err != nil {
		return err
	}
	st := c.find(failed.id)
	if st == nil {
		// The stream has ended, but the peer still learns that its frame was an error.
		c.mu.Lock()
		c.queueReset(failed.id, failed.code)
		c.mu.Unlock()
		return nil
	}
	if err := c.countReset(st); err != nil {
		return err
	}
	reset := message.ResetError{Code: failed.code, Reason: failed.reason}
	if c.server != nil {
		st.reset(failed.code, &message.MalformedError{Reset: reset})
	} else {
		st.reset(failed.code, &reset)
	}
	return nil
}

// queuedBytes returns the number of bytes in the output. The caller holds mu.
func (c *conn) queuedBytes() int {
	if c.out == nil {
		return 0
	}
	return len(c.out.B)
}

// frameSizes holds the payload sizes of frames with a fixed size, by frame type. PRIORITY is not
// in it, because a wrong size of PRIORITY resets only the stream.
var frameSizes = [...]int{frameRSTStream: 4, framePing: 8, frameWindowUpdate: 4}

// frame handles one frame with the payload p. It first checks what holds for all frames of a type: the
// order of frames, whether the ID may be 0, that the stream exists, and the payload's size. An error is
// a streamError if only the stream is affected, and otherwise ends the connection.
func (c *conn) frame(typ, flags byte, id uint32, p []byte) error {
	// The frames of a header block must follow each other directly.
	if c.block.id != 0 && (typ != frameContinuation || id != c.block.id) {
		return protocolError("CONTINUATION expected")
	}
	if !c.settled && (typ != frameSettings || flags&flagAck != 0) {
		return protocolError("SETTINGS expected")
	}
	switch typ {
	case frameData, frameHeaders, framePriority, frameRSTStream, frameContinuation:
		if id == 0 {
			return protocolError("frame of a stream on stream 0")
		}
	case frameSettings, framePing, frameGoAway:
		if id != 0 {
			return protocolError("frame of the connection on a stream")
		}
	}
	var st *stream
	// These frames need a stream that is open or was open. One that was never opened is an error.
	if typ == frameData || typ == frameRSTStream || typ == frameWindowUpdate && id != 0 ||
		typ == frameHeaders && c.client != nil {
		if st = c.find(id); st == nil && c.unopened(id) {
			return protocolError("frame on an idle stream")
		}
	}
	// Table entries of 0 belong to frames without a fixed size.
	if int(typ) < len(frameSizes) && frameSizes[typ] > 0 && len(p) != frameSizes[typ] {
		return connError(message.CodeFrameSize, "wrong size of a frame")
	}
	switch typ {
	case frameData:
		return c.data(flags, id, st, p)
	case frameHeaders:
		return c.headersFrame(flags, id, p)
	case frameContinuation:
		return c.continuation(flags, id, p)
	case framePriority:
		switch {
		case len(p) != 5:
			return &streamError{id, message.CodeFrameSize, "PRIORITY frame size"}
		case binary.BigEndian.Uint32(p)&maxStreamID == id:
			return malformed(id, "stream depends on itself")
		}
	case frameRSTStream:
		return c.rstStream(st, binary.BigEndian.Uint32(p))
	case frameSettings:
		return c.settings(flags, p)
	case framePushPromise:
		return protocolError("PUSH_PROMISE")
	case framePing:
		return c.ping(flags, binary.BigEndian.Uint64(p))
	case frameGoAway:
		if len(p) < 8 {
			return connError(message.CodeFrameSize, "GOAWAY frame size")
		}
		if c.client != nil {
			return c.client.goAway(binary.BigEndian.Uint32(p)&maxStreamID, binary.BigEndian.Uint32(p[4:]), p[8:])
		}
	case frameWindowUpdate:
		return c.windowUpdate(id, st, int64(binary.BigEndian.Uint32(p)&maxWindow))
	}
	// A frame that gets here contributes nothing to a request. A peer that sends too many of them is cut off.
	return c.glitch(glitchControl)
}

// unpad returns the payload without the pad length, which is its first byte, and without the padding at
// its end, if the flags say that the frame is padded.
func unpad(flags byte, p []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return p, nil
	}
	if len(p) == 0 {
		return nil, connError(message.CodeFrameSize, "padded frame without a pad length")
	}
	n := int(p[0])
	if p = p[1:]; n > len(p) {
		return nil, protocolError("padding longer than the frame")
	}
	return p[:len(p)-n], nil
}

// headersFrame handles a HEADERS frame. If CONTINUATION frames follow, it keeps the start of the
// header block in c.block until the block is complete.
func (c *conn) headersFrame(flags byte, id uint32, p []byte) error {
	p, err := unpad(flags, p)
	if err != nil {
		return err
	}
	if flags&flagPriority != 0 {
		if len(p) < 5 {
			return connError(message.CodeFrameSize, "HEADERS frame size")
		}
		if binary.BigEndian.Uint32(p)&maxStreamID == id {
			return protocolError("stream depends on itself")
		}
		p = p[5:] // the stream dependency and the weight, which are deprecated and ignored
	}
	if flags&flagEndHeaders == 0 {
		c.block = headerBlock{id: id, flags: flags, buf: message.GetBuffer(len(p))}
		c.block.buf.B = append(c.block.buf.B, p...)
		return nil
	}
	return c.headerBlock(flags, id, p)
}

// continuation appends a CONTINUATION frame to the header block. It rejects blocks that are too large,
// or consist of many small frames.
func (c *conn) continuation(flags byte, id uint32, p []byte) error {
	b := &c.block
	if b.id == 0 {
		return protocolError("CONTINUATION without HEADERS")
	}
	b.frames++
	// A block of 16 KiB and more is split by its sender, but not into pieces below 1 KiB.
	// A block is usually smaller than the fields in it, so half more than their limit is generous.
	if n := len(b.buf.B) + len(p); n > c.maxHeader+c.maxHeader/2 || b.frames > 16+n/1024 {
		return connError(message.CodeEnhanceYourCalm, "header block too large")
	}
	b.buf.B = append(b.buf.B, p...)
	if flags&flagEndHeaders == 0 {
		return nil
	}
	err := c.headerBlock(b.flags, id, b.buf.B)
	b.buf.Release()
	c.block = headerBlock{}
	return err
}

// headerBlock decodes p, a complete header block of the stream id, and passes its fields to the stream,
// which they may open or end. Even the block of a stream that does not exist must be decoded, because
// all blocks share the compression state.
func (c *conn) headerBlock(flags byte, id uint32, p []byte) error {
	// On the stack, for the usual number of fields.
	var slab [32]field
	fields, err := c.dec.decode(p, slab[:0], c.maxHeader)
	if errors.Is(err, errHPACK) {
		return connError(message.CodeCompression, err.Error())
	}
	if c.server != nil {
		trim(fields)
	}
	end := flags&flagEndStream != 0
	tooLarge := err != nil
	st := c.find(id)
	switch {
	case st == nil && c.server != nil:
		return c.server.headers(id, fields, end, tooLarge)
	// The response to a request that was reset. It was decoded only for the dynamic table.
	case st == nil:
		return nil
	case st.gotEnd:
		return &streamError{id, message.CodeStreamClosed, "HEADERS after the end of the stream"}
	case st.client != nil && !st.ready:
		return st.client.headers(fields, end, tooLarge)
	}
	return st.receiveTrailers(fields, end, tooLarge)
}

// data handles a DATA frame with the payload p: it adds the bytes to the received body of st. st is nil
// if the stream has ended. Flow control counts the whole payload with its padding, also if the stream
// has ended, because the peer counts it too. A streamError resets only the stream; any other error ends
// the connection.
func (c *conn) data(flags byte, id uint32, st *stream, p []byte) error {
	flow := int64(len(p))
	if c.received += flow; c.received > c.connWindow {
		return connError(message.CodeFlowControl, "window of the connection exceeded")
	}
	p, err := unpad(flags, p)
	if err != nil {
		return err
	}
	end := flags&flagEndStream != 0
	if len(p) == 0 && !end { // such a frame only costs time
		if err := c.glitch(glitchControl); err != nil {
			return err
		}
	}
	switch {
	case st == nil && (c.client != nil || c.hasReset()):
		return nil // the peer may not yet know that the stream was reset
	case st == nil:
		return &streamError{id, message.CodeStreamClosed, "DATA on a closed stream"}
	case st.gotEnd:
		return &streamError{id, message.CodeStreamClosed, "DATA after the end of the stream"}
	case st.client != nil && !st.ready:
		return malformed(id, "DATA before HEADERS")
	}
	if err := st.count(len(p), end); err != nil {
		return err
	}
	if err := st.receive(p, flow, end); err != nil {
		return err
	}
	c.moved.Add(int64(len(p)))
	c.touch(st)
	if end {
		st.endReceived()
	}
	return nil
}

// rstStream handles an RST_STREAM frame. st is nil if the stream has ended.
func (c *conn) rstStream(st *stream, code uint32) error {
	if st == nil {
		return c.glitch(glitchControl)
	}
	if err := c.countReset(st); err != nil {
		return err
	}
	st.end(&message.ResetError{Code: code, Remote: true}) // without an effect on a complete response
	return nil
}

// ping acknowledges a PING of the peer. On a server, the acknowledgment of the PING that Drain sent
// shows that the client has read the first GOAWAY, and starts the second part of the drain.
func (c *conn) ping(flags byte, data uint64) error {
	switch {
	case flags&flagAck == 0:
		c.mu.Lock()
		c.queuePing(flagAck, data)
		c.kick()
		c.mu.Unlock()
	case c.server != nil && data == drainPing:
		c.server.endDrain()
	}
	// A PING contributes nothing to a request, so too many of them end the connection.
	return c.glitch(glitchControl)
}

// windowUpdate handles a WINDOW_UPDATE frame by n bytes. An id of 0 means the connection's window. st
// is nil if the stream has ended.
func (c *conn) windowUpdate(id uint32, st *stream, n int64) error {
	if n < tinyUpdate {
		if err := c.glitch(glitchControl); err != nil {
			return err
		}
	}
	if id == 0 {
		if n == 0 {
			return protocolError("WINDOW_UPDATE of 0")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.sendWindow += n; c.sendWindow > maxWindow {
			return connError(message.CodeFlowControl, "window larger than 2^31-1")
		}
		c.wakeBlocked()
		return nil
	}
	switch {
	case st == nil: // usual after the end of a large response
		return nil
	case n == 0:
		return malformed(id, "WINDOW_UPDATE of 0")
	}
	c.mu.Lock()
	st.sendWindow += n
	overflow := st.sendWindow > maxWindow
	st.sendable.Signal()
	c.mu.Unlock()
	if overflow {
		return &streamError{id, message.CodeFlowControl, "window larger than 2^31-1"}
	}
	return nil
}

// settings applies the peer's SETTINGS and acknowledges them. The time until the peer acknowledges this
// side's own SETTINGS is the connection's round-trip time.
func (c *conn) settings(flags byte, p []byte) error {
	if flags&flagAck != 0 {
		if len(p) > 0 {
			return connError(message.CodeFrameSize, "SETTINGS frame size")
		}
		// 0 means that the time was not measured, so the shortest time is 1.
		if c.rtt.Load() == 0 {
			c.rtt.Store(int64(max(time.Since(c.started), 1)))
			return nil
		}
		return c.glitch(glitchControl)
	}
	if len(p)%6 != 0 {
		return connError(message.CodeFrameSize, "SETTINGS frame size")
	}
	// SETTINGS cost work too, so too many of them end the connection.
	if err := c.glitch(glitchSetting + len(p)/6); err != nil {
		return err
	}
	first := !c.settled
	c.mu.Lock()
	if err := c.applySettings(p); err != nil {
		c.mu.Unlock()
		return err
	}
	c.queueControl(frameSettings, flagAck, 0)
	c.kick()
	c.settled = true
	if first && c.server != nil {
		c.server.phaseLocked()
	}
	c.changed = true
	c.unlock()
	// Whoever has made the connection waits for this: the server speaks HTTP/2.
	if first && c.client != nil {
		close(c.client.settledC)
	}
	return nil
}

// applySettings applies the payload of the peer's SETTINGS frame. The caller holds mu.
func (c *conn) applySettings(p []byte) error {
	for ; len(p) > 0; p = p[6:] {
		v := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case settingHeaderTableSize:
			c.enc.setMax(v)
		case settingEnablePush:
			if v > 1 || v == 1 && c.client != nil {
				return protocolError("invalid ENABLE_PUSH")
			}
		case settingMaxConcurrentStreams:
			c.peerStreams = int(min(v, maxStreamID))
		case settingInitialWindowSize:
			if v > maxWindow {
				return connError(message.CodeFlowControl, "invalid INITIAL_WINDOW_SIZE")
			}
			// The new initial window also applies to open streams. Their windows may become negative.
			delta := int64(v) - c.peerWindow
			c.peerWindow = int64(v)
			for _, st := range c.streams {
				if st.sendWindow += delta; st.sendWindow > maxWindow {
					return connError(message.CodeFlowControl, "window larger than 2^31-1")
				}
				st.sendable.Signal()
			}
		case settingMaxFrameSize:
			if v < minMaxFrame || v > 1<<24-1 {
				return protocolError("invalid MAX_FRAME_SIZE")
			}
			c.peerFrame = int(min(v, maxMaxFrame))
		}
	}
	return nil
}
