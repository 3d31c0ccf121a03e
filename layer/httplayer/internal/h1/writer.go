package h1

import (
	"io"
	"net"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// writer serializes and sends one message at a time. begin takes a buffer for the message from the
// pool, and end gives the buffer back.
type writer struct {
	conn net.Conn
	wait *sweep.Wait // measures the time for which writes wait for the peer; may be nil

	buf       *message.Buffer
	b         []byte // bytes in the buffer that are not sent
	chunk     int    // offset of the unfinished chunk in b; -1 without one
	chunked   bool   // the body is sent in chunks
	remaining int64  // bytes of Content-Length that were not added; -1 without a length
	added     int64  // bytes of the body
	sent      bool   // the connection has accepted bytes
	broken    bool   // err is an error of the connection
	err       error
}

const (
	chunkHead = len("0000\r\n")
	chunkTail = len("\r\n")
	spare     = chunkTail + len("0\r\n\r\n") // space to end a chunk and the body
	minSpace  = 512
	maxWrite  = 64 << 10 // largest size of one write, so that the sweeper can observe progress
)

// begin prepares w for a message, with a buffer from the pool.
func (w *writer) begin() {
	w.buf = message.GetBuffer(smallSize)
	w.b, w.chunk, w.remaining, w.added, w.err = w.buf.B, -1, -1, 0, nil
	w.chunked, w.sent, w.broken = false, false, false
}

// end returns the buffer to the pool, after the message was sent or has failed. w must not be
// written to afterwards.
func (w *writer) end() {
	w.buf.Release()
	w.buf, w.b = nil, nil
}

// space returns the free part of the buffer, at least minSpace bytes. The caller writes body bytes to
// it and then calls add. If the buffer is nearly full, space first sends what it holds. For a chunked
// body, it leaves room for the size before the chunk, which endChunk fills in.
func (w *writer) space() []byte {
	need := minSpace + spare
	if w.chunked && w.chunk < 0 {
		need += chunkHead
	}
	// A buffer above bigSize could hold a chunk whose size has more than the four digits of chunkHead.
	if cap(w.b)-len(w.b) < need || cap(w.b) > bigSize {
		_ = w.flush()
	}
	if w.chunked && w.chunk < 0 {
		w.chunk = len(w.b)
		w.b = append(w.b, "0000\r\n"...)
	}
	return w.b[len(w.b) : cap(w.b)-spare]
}

// add records that the caller has written n bytes to the start of space's result. It fails if the body
// becomes longer than its Content-Length.
func (w *writer) add(n int) error {
	// remaining is negative if there is no Content-Length to check.
	if w.remaining >= 0 {
		if int64(n) > w.remaining {
			w.err = message.ErrLongBody
			return w.err
		}
		w.remaining -= int64(n)
	}
	w.b = w.b[:len(w.b)+n]
	w.added += int64(n)
	return w.err
}

// endChunk completes the unfinished chunk in the buffer, if there is one: it fills in the size before
// the data, always with four digits. A chunk without data is removed, because it would end the body.
func (w *writer) endChunk() {
	if w.chunk < 0 {
		return
	}
	n := len(w.b) - w.chunk - chunkHead
	if n == 0 {
		w.b = w.b[:w.chunk]
	} else {
		const hex = "0123456789abcdef"
		// Four digits are enough, because space sends a buffer above bigSize before it begins a chunk.
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
	// Start again at the beginning of the buffer.
	w.b = w.buf.B
	return w.err
}

// send writes p to the connection, and notes the time that this waits, so that a stuck peer is noticed.
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

// Write implements [io.Writer]. It appends p to the body.
func (w *writer) Write(p []byte) (n int, err error) {
	if len(p) > smallSize {
		w.enlarge()
	}
	for len(p) > 0 && w.err == nil {
		k := min(len(p), maxWrite)
		// A large piece of a body with a Content-Length is sent directly, without a copy into the
		// buffer.
		if !w.chunked && len(w.b) == 0 && k >= cap(w.b) && (w.remaining < 0 || int64(k) <= w.remaining) {
			if w.remaining >= 0 {
				w.remaining -= int64(k)
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

// finish ends the message and sends what is buffered. A chunked body ends with the trailers; for other
// bodies they are ignored. It fails if the body was shorter than its Content-Length.
func (w *writer) finish(trailer http.Header) error {
	_ = w.complete(trailer)
	return w.flush()
}

// complete is like finish, but does not send: it only adds the end of the body to the buffer.
func (w *writer) complete(trailer http.Header) error {
	w.endChunk()
	switch {
	case w.err != nil:
	case w.remaining > 0:
		w.err = message.ErrShortBody
	// The chunk of size 0 ends the body, and the trailers follow it.
	case w.chunked:
		w.b = append(w.b, '0', '\r', '\n')
		w.b = appendTrailers(w.b, trailer)
	}
	return w.err
}

// copyBody adds body to the message, and reports whether body has ended. If wait is false, it only
// copies what can be read without waiting and fits into the buffer. If wait is true, it copies the
// whole body, and sends what is buffered each time before it waits for more. The error comes from body
// or from the connection.
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
			// A full Read suggests that the body is fast. A larger buffer then needs fewer writes.
			w.enlarge()
		}
	}
}
