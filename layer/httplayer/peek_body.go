package httplayer

import (
	"io"
	"maps"
	"net/http"
	"sync"

	"github.com/gotower/gotower/internal/panics"
)

// peekedBody is a body of which the beginning was read ahead, or is being read.
type peekedBody struct {
	from, to *http.Response // the one whose body it is, and the one that has this

	pieces chan piece    // what is read ahead; closed when no more of that will come
	closed chan struct{} // by Close
	once   sync.Once

	// Of whoever reads.
	held    []piece
	fetched bool // of pieces there are none left
}

// piece is what one Read gave.
type piece struct {
	data []byte
	err  error
}

// peekPieces is more than fetch reads.
const peekPieces = 8

// fetch reads ahead: the first piece, to its end where that can be told from how
// full the buffer is, and the one that follows it.
func (b *peekedBody) fetch(body io.Reader) {
	defer close(b.pieces)
	size, room, last := peekLeast, peekMost, false
	for {
		p := readPiece(body, size)
		b.pieces <- p
		if room -= len(p.data); p.err != nil || last {
			return
		}
		if len(p.data) == size && room > 0 {
			size = min(2*size, room)
		} else {
			size, last = peekNext, true
		}
	}
}

// readPiece reads once, on a goroutine of Peek.
func readPiece(body io.Reader, size int) (p piece) {
	defer panics.Recover(&p.err)
	buf := make([]byte, size)
	for {
		n, err := body.Read(buf)
		if n > 0 || err != nil {
			return piece{buf[:n], err}
		}
	}
}

func (b *peekedBody) Read(p []byte) (int, error) {
	select {
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	default:
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(b.held) == 0 && !b.next() {
		return b.end(b.from.Body.Read(p))
	}
	first := &b.held[0]
	n := copy(p, first.data)
	first.data = first.data[n:]
	switch {
	case len(first.data) > 0:
	case first.err != nil:
		return b.end(n, first.err) // and stays, to be said again
	default:
		b.held = b.held[1:]
	}
	return n, nil
}

// next waits for a piece that was read ahead; false if there are none left.
func (b *peekedBody) next() bool {
	if b.fetched {
		return false
	}
	select {
	case p, ok := <-b.pieces:
		if !ok {
			b.fetched = true
			return false
		}
		b.held = append(b.held, p)
	case <-b.closed:
		b.held = append(b.held, piece{err: http.ErrBodyReadAfterClose})
	}
	return true
}

// end hands out the trailers with the end of the body, as net/http does: into
// the map that is there for those that were announced.
func (b *peekedBody) end(n int, err error) (int, error) {
	if err == io.EOF && b.from.Trailer != nil { //nolint:errorlint // a Reader ends with just this value
		if b.to.Trailer == nil {
			b.to.Trailer = make(http.Header, len(b.from.Trailer))
		}
		maps.Copy(b.to.Trailer, b.from.Trailer)
	}
	return n, err
}

func (b *peekedBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.from.Body.Close()
}
