package h1

import (
	"io"
	"net"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var (
	errBodyLong  error = &message.RequestError{Reason: "body is longer than its Content-Length"}
	errBodyShort error = &message.RequestError{Reason: "body is shorter than its Content-Length"}
)

// writer sends one message. It has a buffer between begin and end.
type writer struct {
	conn net.Conn
	wait *wait // measures the time in which it waits; may be nil

	buf     *buffer
	b       []byte // not sent
	chunk   int    // offset of the open chunk in b, or -1
	chunked bool
	left    int64 // of the Content-Length, or -1
	moved   bool  // a part of the body was added
	sent    bool  // the connection has accepted bytes
	broken  bool  // err is of the connection
	err     error
}

const (
	chunkHead = len("0000\r\n")
	chunkTail = len("\r\n")
	spare     = chunkTail + len("0\r\n\r\n") // to end a chunk and the body
	minSpace  = 512
)

func (w *writer) begin() {
	w.buf = getBuffer(&smallBuffers)
	w.b, w.chunk, w.left, w.err = w.buf.b[:0], -1, -1, nil
	w.chunked, w.moved, w.sent, w.broken = false, false, false, false
}

func (w *writer) end() {
	if w.buf != nil {
		w.buf.put()
		w.buf, w.b = nil, nil
	}
}

// space returns free space of the buffer for the next bytes of the body. The caller reads
// into it and then calls add.
func (w *writer) space() []byte {
	need := minSpace + spare
	if w.chunked && w.chunk < 0 {
		need += chunkHead
	}
	if cap(w.b)-len(w.b) < need || cap(w.b) > bigSize { // a larger chunk has more digits
		_ = w.flush()
	}
	if w.chunked && w.chunk < 0 {
		w.chunk = len(w.b)
		w.b = append(w.b, "0000\r\n"...)
	}
	return w.b[len(w.b) : cap(w.b)-spare]
}

// add appends n bytes of the space.
func (w *writer) add(n int) error {
	if w.left >= 0 {
		if int64(n) > w.left {
			w.err = errBodyLong
			return w.err
		}
		w.left -= int64(n)
	}
	w.b = w.b[:len(w.b)+n]
	w.moved = w.moved || n > 0
	return w.err
}

// endChunk writes the size of the open chunk.
func (w *writer) endChunk() {
	if w.chunk < 0 {
		return
	}
	n := len(w.b) - w.chunk - chunkHead
	if n == 0 {
		w.b = w.b[:w.chunk]
	} else {
		const hex = "0123456789abcdef"
		for i := range 4 {
			w.b[w.chunk+i] = hex[n>>(12-4*i)&15]
		}
		w.b = append(w.b, '\r', '\n')
	}
	w.chunk = -1
}

// flush sends the buffered bytes.
func (w *writer) flush() error {
	w.endChunk()
	if w.err == nil && len(w.b) > 0 {
		w.send(w.b)
	}
	w.b = w.buf.b[:0]
	return w.err
}

func (w *writer) send(p []byte) {
	w.wait.begin()
	n, err := w.conn.Write(p)
	w.wait.end(0)
	w.sent = w.sent || n > 0
	w.broken, w.err = err != nil, err
}

// enlarge takes a big buffer for a long body.
func (w *writer) enlarge() {
	if cap(w.b) >= bigSize {
		return
	}
	large := getBuffer(&bigBuffers)
	w.b = append(large.b[:0], w.b...)
	w.buf.put()
	w.buf = large
}

// Write appends a part of the body.
func (w *writer) Write(p []byte) (n int, err error) {
	if len(p) > smallSize {
		w.enlarge()
	}
	for len(p) > 0 && w.err == nil {
		if !w.chunked && len(w.b) == 0 && len(p) >= cap(w.b) && (w.left < 0 || int64(len(p)) <= w.left) {
			if w.left >= 0 {
				w.left -= int64(len(p))
			}
			w.send(p)
			return n + len(p), w.err
		}
		k := copy(w.space(), p)
		if err := w.add(k); err != nil {
			return n, err
		}
		p = p[k:]
		n += k
	}
	return n, w.err
}

// finish ends the body and sends the rest.
func (w *writer) finish(trailer http.Header) error {
	_ = w.complete(trailer)
	return w.flush()
}

// complete ends the body in the buffer. Trailers need chunks.
func (w *writer) complete(trailer http.Header) error {
	w.endChunk()
	switch {
	case w.err != nil:
	case w.left > 0:
		w.err = errBodyShort
	case w.chunked:
		w.b = append(w.b, '0', '\r', '\n')
		w.b = appendTrailers(w.b, trailer)
	}
	return w.err
}

// copyPending copies the bytes that body returns without waiting, as far as the buffer has
// space. It reports whether the body has ended.
func (w *writer) copyPending(body io.Reader) (ended bool, err error) {
	for {
		n, eof := message.Pending(body)
		if n == 0 && !eof || n > cap(w.b)-len(w.b)-chunkHead-spare {
			return false, nil
		}
		if ended, err = w.copyOnce(body); ended || err != nil {
			return ended, err
		}
	}
}

// copyOnce calls Read of body once and appends the bytes. It returns an error of body or of
// the connection.
func (w *writer) copyOnce(body io.Reader) (ended bool, err error) {
	space := w.space()
	if w.err != nil {
		return false, w.err
	}
	n, err := body.Read(space)
	if addErr := w.add(n); addErr != nil {
		return false, addErr
	}
	switch {
	case err == io.EOF:
		return true, nil
	case n == len(space):
		w.endChunk()
		w.enlarge()
	}
	return false, err
}

// copyBody sends the body up to its end. It sends the buffered bytes
// before it waits for more.
func (w *writer) copyBody(body io.Reader) error {
	for {
		if n, eof := message.Pending(body); n == 0 && !eof {
			if err := w.flush(); err != nil {
				return err
			}
		}
		ended, err := w.copyOnce(body)
		if ended || err != nil {
			return err
		}
	}
}
