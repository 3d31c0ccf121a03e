package h1

import (
	"io"
	"net"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// writer serializes and sends one message at a time. The method begin takes a buffer for
// the message from the pool, and the method end gives the buffer back.
type writer struct {
	conn net.Conn
	wait *sweep.Wait // measures the time for which writes wait for the peer; may be nil

	buf     *message.Buffer
	b       []byte // bytes in the buffer that are not sent
	chunk   int    // offset of the unfinished chunk in b; -1 without one
	chunked bool
	left    int64 // bytes of Content-Length that were not added; -1 without a length
	moved   bool  // at least one byte of the body was added
	sent    bool  // the connection has accepted bytes
	broken  bool  // err is an error of the connection
	err     error
}

const (
	chunkHead = len("0000\r\n")
	chunkTail = len("\r\n")
	spare     = chunkTail + len("0\r\n\r\n") // space to end a chunk and the body
	minSpace  = 512
	maxWrite  = 64 << 10 // largest size of one write, so that the sweeper can observe progress
)

func (w *writer) begin() {
	w.buf = message.GetBuffer(smallSize)
	w.b, w.chunk, w.left, w.err = w.buf.B, -1, -1, nil
	w.chunked, w.moved, w.sent, w.broken = false, false, false, false
}

func (w *writer) end() {
	w.buf.Release()
	w.buf, w.b = nil, nil
}

// space returns the free part of the buffer. The caller writes the next bytes of the body
// to it and then calls add. If the buffer is nearly full, space first sends the buffered
// bytes.
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

// add appends the n bytes that the caller wrote to the result of space. It fails if the
// body becomes longer than its Content-Length.
func (w *writer) add(n int) error {
	if w.left >= 0 {
		if int64(n) > w.left {
			w.err = message.ErrLongBody
			return w.err
		}
		w.left -= int64(n)
	}
	w.b = w.b[:len(w.b)+n]
	w.moved = w.moved || n > 0
	return w.err
}

// endChunk completes the unfinished chunk in the buffer: it writes the size before the
// data. It removes a chunk without data.
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

// flush ends the current chunk and sends the buffered bytes.
func (w *writer) flush() error {
	w.endChunk()
	if w.err == nil && len(w.b) > 0 {
		w.send(w.b)
	}
	w.b = w.buf.B
	return w.err
}

func (w *writer) send(p []byte) {
	w.wait.Begin()
	n, err := w.conn.Write(p)
	w.wait.End(0)
	w.sent = w.sent || n > 0
	w.broken, w.err = err != nil, err
}

// enlarge replaces the buffer by a big one, for a long body.
func (w *writer) enlarge() {
	if cap(w.b) >= bigSize {
		return
	}
	large := message.GetBuffer(bigSize)
	w.b = append(large.B, w.b...)
	w.buf.Release()
	w.buf = large
}

// Write is part of [io.Writer]. It appends p to the body.
func (w *writer) Write(p []byte) (n int, err error) {
	if len(p) > smallSize {
		w.enlarge()
	}
	for len(p) > 0 && w.err == nil {
		k := min(len(p), maxWrite)
		if !w.chunked && len(w.b) == 0 && k >= cap(w.b) && (w.left < 0 || int64(k) <= w.left) {
			if w.left >= 0 {
				w.left -= int64(k)
			}
			w.send(p[:k])
		} else {
			k = copy(w.space(), p)
			if err := w.add(k); err != nil {
				return n, err
			}
		}
		p = p[k:]
		n += k
	}
	return n, w.err
}

// finish appends the end of the body and sends the buffered bytes. A chunked body ends with
// the given trailers. For other bodies the trailers are ignored.
func (w *writer) finish(trailer http.Header) error {
	_ = w.complete(trailer)
	return w.flush()
}

// complete adds the end of the body to the buffer. It adds the trailers only if the body is
// chunked.
func (w *writer) complete(trailer http.Header) error {
	w.endChunk()
	switch {
	case w.err != nil:
	case w.left > 0:
		w.err = message.ErrShortBody
	case w.chunked:
		w.b = append(w.b, '0', '\r', '\n')
		w.b = appendTrailers(w.b, trailer)
	}
	return w.err
}

// copyBody appends body, and reports whether it has ended. If wait is false, it copies only bytes
// that can be read without waiting, as long as they fit into the buffer. Otherwise it copies the
// whole body. It then sends the buffered bytes each time before it waits for body. The error comes
// from body or from the connection.
func (w *writer) copyBody(body io.Reader, wait bool) (ended bool, err error) {
	for {
		n, eof := message.Pending(body)
		waits := n == 0 && !eof
		switch {
		case !wait && (waits || n > cap(w.b)-len(w.b)-chunkHead-spare):
			return false, nil
		case waits:
			_ = w.flush() // its error is in w.err
		}
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
		case err != nil:
			return false, err
		case n == len(space):
			w.endChunk()
			w.enlarge()
		}
	}
}
