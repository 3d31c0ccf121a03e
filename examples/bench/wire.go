package main

import (
	"encoding/binary"
	"errors"
	"net"
)

// headEnd ends the headers of an HTTP/1.1 message.
const headEnd = "\r\n\r\n"

// The parts of HTTP/2 that the load generator and the backend use.
const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settingsFrame = "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x01\x00\x00\x00\x00" // HEADER_TABLE_SIZE is 0

	frameData, frameHeaders, frameReset, frameSettings = 0, 1, 3, 4
	framePing, frameGoAway, frameWindowUpdate          = 6, 7, 8
	flagEndStream, flagAck, flagEndHeaders             = 1, 1, 4

	frameHeader   = 9
	initialWindow = 65535
	credit        = 16 << 10 // bytes of DATA for which one WINDOW_UPDATE is sent
)

// frame is one frame of HTTP/2. Its payload is valid until the next read.
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// wire is a connection with its unprocessed input and its unwritten output. It never
// decodes a header block, because it announces a header table of size 0.
type wire struct {
	conn   net.Conn
	room   []byte // the buffer of in
	in     []byte // not yet processed
	out    []byte // not yet written
	window int    // bytes of DATA that the peer accepts
	used   uint32 // bytes of received DATA without a WINDOW_UPDATE
}

func newWire(conn net.Conn) wire {
	return wire{conn: conn, room: make([]byte, 64<<10), window: initialWindow}
}

// read waits for further bytes and adds them to in.
func (w *wire) read() error {
	w.in = append(w.room[:0], w.in...)
	if len(w.in) == len(w.room) {
		return errors.New("a message is larger than the buffer")
	}
	n, err := w.conn.Read(w.room[len(w.in):])
	w.in = w.room[:len(w.in)+n]
	return err
}

// flush writes out.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// frame adds one frame to out.
func (w *wire) frame(kind, flags byte, stream uint32, payload string) {
	n := len(payload)
	w.out = append(w.out, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	w.out = binary.BigEndian.AppendUint32(w.out, stream)
	w.out = append(w.out, payload...)
}

// next returns the next complete frame. It processes SETTINGS, PING and WINDOW_UPDATE
// itself and does not return them.
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
			w.frame(frameSettings, flagAck, 0, "")
		case f.kind == framePing && f.flags&flagAck == 0:
			w.frame(framePing, flagAck, 0, string(f.payload))
		case f.kind == frameWindowUpdate && f.stream == 0 && len(f.payload) == 4:
			w.window += int(binary.BigEndian.Uint32(f.payload))
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

// messagePrefix is the size of the prefix of a gRPC message.
const messagePrefix = 5

// message returns a gRPC message of n zero bytes.
func message(n int) string {
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(n))
	return string(append(prefix, make([]byte, n)...))
}
