package main

import (
	"encoding/binary"
	"errors"
	"net"
)

// headEnd ends the headers of an HTTP/1.1 message.
const headEnd = "\r\n\r\n"

// The parts of HTTP/2 that the load generator and the backend use: the bytes at the beginning of a
// connection, types and flags of frames, and sizes in bytes.
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
	credit        = 16 << 10 // how many bytes of DATA may arrive before a WINDOW_UPDATE is sent
)

// frame is an HTTP/2 frame. Its payload is valid until the next call to [wire.read].
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// wire is a connection with its unprocessed input and unwritten output. It skips header blocks
// without decoding them. That is possible because it announces an HPACK table of size 0, so later
// blocks do not depend on skipped ones.
type wire struct {
	conn    net.Conn
	room    []byte // memory for in
	in      []byte // unprocessed input
	out     []byte // unwritten output
	window  int    // bytes of DATA that the peer still accepts on the connection
	start   int    // initial window of a stream: bytes of DATA that the peer accepts before a WINDOW_UPDATE
	bodies  []body // not completely sent yet, because a window is too small
	unacked uint32 // bytes of DATA since the last WINDOW_UPDATE
	skip    int    // bytes of an HTTP/1.1 body that have not arrived yet
}

// body is the unsent part of a message. The stream ends with a header block if there are trailers,
// and otherwise with the last DATA frame.
type body struct {
	stream         uint32
	window         int    // bytes of DATA that the peer still accepts on the stream
	rest, trailers string // rest is the unsent part of the content
}

// newWire returns a wire on conn. Its peer accepts initialWindow bytes at first.
func newWire(conn net.Conn) wire {
	return wire{conn: conn, room: make([]byte, 64<<10), window: initialWindow, start: initialWindow}
}

// pump appends DATA frames to the output, as far as the flow control windows permit, and a body's
// trailers after its last frame.
func (w *wire) pump() {
	// The unfinished bodies move to the front of the same array.
	unfinished := w.bodies[:0]
	for _, b := range w.bodies {
		for b.rest != "" {
			// A DATA frame must fit in both windows and in the peer's maximal frame size.
			n := min(len(b.rest), b.window, w.window, maxFrame)
			if n <= 0 {
				break
			}
			flags := byte(0)
			// Without trailers, the last frame ends the stream.
			if n == len(b.rest) && b.trailers == "" {
				flags = flagEndStream
			}
			w.frame(frameData, flags, b.stream, b.rest[:n])
			b.rest = b.rest[n:]
			b.window -= n
			w.window -= n
		}
		// A body whose content is complete ends with its trailers, and is removed.
		if b.rest != "" {
			unfinished = append(unfinished, b)
		} else if b.trailers != "" {
			w.frame(frameHeaders, flagEndHeaders|flagEndStream, b.stream, b.trailers)
		}
	}
	w.bodies = unfinished
}

// update applies a SETTINGS or WINDOW_UPDATE frame to the streams' flow control windows, which are
// the number of bytes that the peer still accepts.
func (w *wire) update(f frame) {
	increment := 0
	if f.kind == frameWindowUpdate {
		increment = int(binary.BigEndian.Uint32(f.payload))
	}
	// Each setting consists of a number of 2 bytes and a value of 4 bytes.
	for p := f.payload; f.kind == frameSettings && len(p) >= 6; p = p[6:] {
		if binary.BigEndian.Uint16(p) == settingWindow {
			// A changed initial window applies to open streams too, by its difference to the previous one.
			increment = int(binary.BigEndian.Uint32(p[2:])) - w.start
			w.start += increment
		}
	}
	// SETTINGS have stream 0 and apply to all streams.
	for i := range w.bodies {
		if f.stream == 0 || f.stream == w.bodies[i].stream {
			w.bodies[i].window += increment
		}
	}
}

// read waits for more input.
func (w *wire) read() error {
	// Unprocessed input moves to the front, to make room.
	w.in = append(w.room[:0], w.in...)
	if len(w.in) == len(w.room) {
		return errors.New("a message is larger than the buffer")
	}
	n, err := w.conn.Read(w.room[len(w.in):])
	w.in = w.room[:len(w.in)+n]
	return err
}

// skipped removes the rest of an HTTP/1.1 body from the input, as far as it has arrived. It returns
// true when the whole body is removed.
func (w *wire) skipped() bool {
	// The rest of the body may arrive later.
	n := min(w.skip, len(w.in))
	w.in = w.in[n:]
	w.skip -= n
	return w.skip == 0
}

// flush writes the output.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// frame appends a frame to the output, without writing it.
func (w *wire) frame(kind, flags byte, stream uint32, payload string) {
	n := len(payload)
	// The header of a frame: 3 bytes of length, the type, the flags and the stream.
	w.out = append(w.out, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	w.out = binary.BigEndian.AppendUint32(w.out, stream)
	w.out = append(w.out, payload...)
}

// next removes the next complete frame from the input. ok is false if there is none. It handles
// SETTINGS, PING and WINDOW_UPDATE frames itself and does not return them.
func (w *wire) next() (f frame, ok bool) {
	for len(w.in) >= frameHeader {
		// The first 3 bytes are the length of the payload.
		end := frameHeader + (int(w.in[0])<<16 | int(w.in[1])<<8 | int(w.in[2]))
		if len(w.in) < end {
			break
		}
		// The highest bit of the stream is reserved.
		f = frame{w.in[3], w.in[4], binary.BigEndian.Uint32(w.in[5:]) &^ (1 << 31), w.in[frameHeader:end]}
		w.in = w.in[end:]
		// Other frames, such as acknowledgements, are ignored.
		switch {
		case f.kind == frameSettings && f.flags&flagAck == 0:
			w.update(f)
			w.frame(frameSettings, flagAck, 0, "")
		case f.kind == framePing && f.flags&flagAck == 0:
			w.frame(framePing, flagAck, 0, string(f.payload))
		// Stream 0 is the connection, whose window is separate from those of the streams.
		case f.kind == frameWindowUpdate && f.stream == 0 && len(f.payload) == 4:
			w.window += int(binary.BigEndian.Uint32(f.payload))
		case f.kind == frameWindowUpdate && len(f.payload) == 4:
			w.update(f)
		case f.kind == frameData:
			// Streams have the maximal window, so only the connection's is refilled.
			if w.unacked += uint32(len(f.payload)); w.unacked > credit {
				w.frame(frameWindowUpdate, 0, 0, string(binary.BigEndian.AppendUint32(nil, w.unacked)))
				w.unacked = 0
			}
			return f, true
		case f.kind == frameHeaders || f.kind == frameReset || f.kind == frameGoAway:
			return f, true
		}
	}
	return frame{}, false
}

// messagePrefix is the size of what precedes each gRPC message: a flag and four bytes with the length.
const messagePrefix = 5

// message returns a gRPC message of n zero bytes, with its prefix.
func message(n int) string {
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(n))
	return string(append(prefix, make([]byte, n)...))
}
