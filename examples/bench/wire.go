package main

import (
	"encoding/binary"
	"errors"
	"net"
)

// headEnd is the text at the end of the headers of an HTTP/1.1 message.
const headEnd = "\r\n\r\n"

// The parts of HTTP/2 that the load generator and the backend use: the bytes that begin a
// connection, the types and flags of frames, and sizes in bytes.
const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settingsFrame = "\x00\x00\x0c\x04\x00\x00\x00\x00\x00" +
		"\x00\x01\x00\x00\x00\x00" + "\x00\x04\x7f\xff\xff\xff" + // HEADER_TABLE_SIZE 0, INITIAL_WINDOW_SIZE 2^31-1
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + "\x00\x10\x00\x00" // WINDOW_UPDATE of 1 MiB

	frameData, frameHeaders, frameReset, frameSettings = 0, 1, 3, 4
	framePing, frameGoAway, frameWindowUpdate          = 6, 7, 8
	flagEndStream, flagAck, flagEndHeaders             = 1, 1, 4

	frameHeader   = 9
	initialWindow = 65535
	settingWindow = 4 // INITIAL_WINDOW_SIZE
	maxFrame      = 16 << 10
	credit        = 16 << 10 // bytes of received DATA after which a WINDOW_UPDATE is sent
)

// frame is one frame of HTTP/2. Its payload is valid until the next call of [wire.read].
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// wire is a connection with its unprocessed input and its unwritten output. It skips header
// blocks without decoding them. Later blocks do not depend on a skipped block, because wire
// announces a size of 0 for the header table of HPACK.
type wire struct {
	conn   net.Conn
	room   []byte // memory of the field in
	in     []byte // input that is not yet processed
	out    []byte // output that is not yet written
	window int    // bytes of DATA that the peer accepts on the connection
	start  int    // bytes of DATA that the peer accepts on a new stream
	bodies []body // bodies that are not completely sent, because a window is too small
	used   uint32 // bytes of DATA received since the last WINDOW_UPDATE
	skip   int    // bytes of an HTTP/1.1 body that are still to come
}

// body is the part of a message that has not been sent yet. If trailers is not empty, a header
// block with them ends the stream. Otherwise the last DATA frame ends it.
type body struct {
	stream         uint32
	window         int
	rest, trailers string
}

func newWire(conn net.Conn) wire {
	return wire{conn: conn, room: make([]byte, 64<<10), window: initialWindow, start: initialWindow}
}

// pump appends DATA frames to the unwritten output, as far as the flow control windows permit.
// After the last DATA frame of a body, it appends the trailers of the body.
func (w *wire) pump() {
	kept := w.bodies[:0]
	for _, b := range w.bodies {
		for b.rest != "" {
			n := min(len(b.rest), b.window, w.window, maxFrame)
			if n <= 0 {
				break
			}
			flags := byte(0)
			if n == len(b.rest) && b.trailers == "" {
				flags = flagEndStream
			}
			w.frame(frameData, flags, b.stream, b.rest[:n])
			b.rest, b.window, w.window = b.rest[n:], b.window-n, w.window-n
		}
		if b.rest != "" {
			kept = append(kept, b)
		} else if b.trailers != "" {
			w.frame(frameHeaders, flagEndHeaders|flagEndStream, b.stream, b.trailers)
		}
	}
	w.bodies = kept
}

// update applies f, a SETTINGS or WINDOW_UPDATE frame, to the flow control windows of the
// streams. A window is the number of bytes that the peer still accepts.
func (w *wire) update(f frame) {
	more := 0
	if f.kind == frameWindowUpdate {
		more = int(binary.BigEndian.Uint32(f.payload))
	}
	for p := f.payload; f.kind == frameSettings && len(p) >= 6; p = p[6:] {
		if binary.BigEndian.Uint16(p) == settingWindow {
			more = int(binary.BigEndian.Uint32(p[2:])) - w.start
			w.start += more
		}
	}
	for i := range w.bodies {
		if f.stream == 0 || f.stream == w.bodies[i].stream {
			w.bodies[i].window += more
		}
	}
}

// read waits for more bytes from the connection and appends them to the field in.
func (w *wire) read() error {
	w.in = append(w.room[:0], w.in...)
	if len(w.in) == len(w.room) {
		return errors.New("a message is larger than the buffer")
	}
	n, err := w.conn.Read(w.room[len(w.in):])
	w.in = w.room[:len(w.in)+n]
	return err
}

// skipped removes the rest of an HTTP/1.1 body from the unprocessed input, as far as the body
// has been received. It returns true when the whole body has been removed.
func (w *wire) skipped() bool {
	n := min(w.skip, len(w.in))
	w.in, w.skip = w.in[n:], w.skip-n
	return w.skip == 0
}

// flush writes the bytes in the field out to the connection.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// frame appends one frame with the given type and flags to the unwritten output. It does not
// write the frame to the connection.
func (w *wire) frame(kind, flags byte, stream uint32, payload string) {
	n := len(payload)
	w.out = append(w.out, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	w.out = binary.BigEndian.AppendUint32(w.out, stream)
	w.out = append(w.out, payload...)
}

// next removes the next complete frame from the unprocessed input and returns it. ok is false if
// no complete frame has arrived. next handles SETTINGS, PING and WINDOW_UPDATE frames itself and
// does not return them.
func (w *wire) next() (f frame, ok bool) {
	for len(w.in) >= frameHeader {
		end := frameHeader + (int(w.in[0])<<16 | int(w.in[1])<<8 | int(w.in[2]))
		if len(w.in) < end {
			break
		}
		f = frame{w.in[3], w.in[4], binary.BigEndian.Uint32(w.in[5:]) &^ (1 << 31), w.in[frameHeader:end]}
		w.in = w.in[end:]
		switch {
		case f.kind == frameSettings && f.flags&flagAck == 0:
			w.update(f)
			w.frame(frameSettings, flagAck, 0, "")
		case f.kind == framePing && f.flags&flagAck == 0:
			w.frame(framePing, flagAck, 0, string(f.payload))
		case f.kind == frameWindowUpdate && f.stream == 0 && len(f.payload) == 4:
			w.window += int(binary.BigEndian.Uint32(f.payload))
		case f.kind == frameWindowUpdate && len(f.payload) == 4:
			w.update(f)
		case f.kind == frameData:
			if w.used += uint32(len(f.payload)); w.used > credit {
				w.frame(frameWindowUpdate, 0, 0, string(binary.BigEndian.AppendUint32(nil, w.used)))
				w.used = 0
			}
			return f, true
		case f.kind == frameHeaders || f.kind == frameReset || f.kind == frameGoAway:
			return f, true
		}
	}
	return frame{}, false
}

// messagePrefix is the size in bytes of the prefix of a gRPC message.
const messagePrefix = 5

// message returns a gRPC message of n zero bytes, with its prefix.
func message(n int) string {
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(n))
	return string(append(prefix, make([]byte, n)...))
}
