package httplayer

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

var _ layer.TrailerPeeker[*http.Response] = Replayer{}

// What Peek reads ahead: as much as a frame of HTTP/2 has, unless the peers agreed
// on longer ones, and of what follows no more than shows that it is not the end.
const (
	peekLeast = 2 << 10
	peekMost  = 16 << 10
	peekNext  = 512
)

// peekPatience is how long the end of a response may come after the first piece
// of its body. linkerd's proxy takes what is there by then; net/http hands out
// a frame just before it looks at the next one, though both came in one packet.
const peekPatience = time.Millisecond

// Peek waits for the first piece of the body of an HTTP/2 response, of up to 16
// KiB, and a millisecond more for the end of the response: see [layer.TrailerPeeker].
// Others it does not look into; the failures of HTTP/1.1 are in the status.
//
// It costs a goroutine, which waits for the second piece if that does not come
// in time, and some KiB until the first was read.
func (Replayer) Peek(ctx context.Context, rsp *http.Response) (ahead *http.Response, whole bool) {
	switch {
	case rsp == nil || ended(rsp):
		return rsp, true
	case rsp.ProtoMajor < 2 || rsp.ContentLength > peekMost:
		return rsp, false
	}
	out := *rsp
	// Out is the caller's, to change as it likes, while those who observe rsp read
	// its header at its end, and net/http writes its trailers then.
	out.Header, out.Trailer = rsp.Header.Clone(), rsp.Trailer.Clone()
	body := &peekedBody{from: rsp, to: &out, pieces: make(chan piece, peekPieces), closed: make(chan struct{})}
	out.Body = body
	go body.fetch(rsp.Body)
	return &out, body.await(ctx)
}

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

// await takes what comes in time, and reports whether that is all.
func (b *peekedBody) await(ctx context.Context) bool {
	whole, more := b.take(ctx, nil)
	if !more {
		return whole
	}
	timer := time.NewTimer(peekPatience)
	defer timer.Stop()
	for more {
		whole, more = b.take(ctx, timer.C)
	}
	return whole
}

// take waits for one piece. It reports whether that was the end, and whether it
// is worth waiting for another.
func (b *peekedBody) take(ctx context.Context, late <-chan time.Time) (whole, more bool) {
	select {
	case p, ok := <-b.pieces:
		if !ok {
			b.fetched = true
			return false, false
		}
		b.held = append(b.held, p)
		return p.err == io.EOF, p.err == nil //nolint:errorlint // a Reader ends with just this value
	case <-late:
	case <-ctx.Done():
	}
	return false, false
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
