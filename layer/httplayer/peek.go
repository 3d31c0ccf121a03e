package httplayer

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Peek reads one HTTP/2 frame of the default size, and then a small piece that
// shows whether the body continues.
const (
	peekLeast = 2 << 10
	peekMost  = 16 << 10
	peekNext  = 512
)

// peekPatience is the wait for the end of a response after the first piece of
// its body. It covers a delay in net/http, which returns a frame before it
// reads the next one of the same packet.
const peekPatience = time.Millisecond

// Peek waits for the first piece of the body of a gRPC response, of up to 16 KiB,
// and a millisecond more for the end of the response: see [layer.Replayer]. It
// returns other responses unchanged, because they report failures in the status.
//
// It costs a goroutine, which waits for a late second piece, and some KiB until
// the first piece was read.
func (Replayer) Peek(ctx context.Context, rsp *http.Response) (ahead *http.Response, whole bool) {
	switch {
	case rsp == nil || ended(rsp):
		return rsp, true
	case rsp.ProtoMajor < 2 || rsp.ContentLength > peekMost || !strings.HasPrefix(rsp.Header.Get("Content-Type"), grpcType):
		return rsp, false
	}
	out := *rsp
	// out has its own maps, because the caller may change them while observers
	// read rsp and net/http writes its trailers.
	out.Header, out.Trailer = rsp.Header.Clone(), rsp.Trailer.Clone()
	body := &peekedBody{from: rsp, to: &out, pieces: make(chan piece, peekPieces), closed: make(chan struct{})}
	out.Body = body
	go body.fetch(rsp.Body)
	return &out, body.await(ctx)
}

// peekedBody is a body with pieces that were read ahead.
type peekedBody struct {
	from, to *http.Response // from owns the body; to has this peekedBody as its body

	pieces chan piece    // the pieces; closed after the last one
	closed chan struct{} // closed by Close
	once   sync.Once

	// Used by the reader only.
	held    []piece
	fetched bool // no piece is left
}

// await collects pieces until the time limit. It reports whether the body has ended.
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

// take waits for one piece. It reports whether it was the last one and whether another one
// may follow.
func (b *peekedBody) take(ctx context.Context, late <-chan time.Time) (whole, more bool) {
	select {
	case p, ok := <-b.pieces:
		if !ok {
			b.fetched = true
			return false, false
		}
		b.held = append(b.held, p)
		return p.err == io.EOF, p.err == nil //nolint:errorlint // a Reader returns exactly this value
	case <-late:
	case <-ctx.Done():
	}
	return false, false
}

// piece is the result of one Read.
type piece struct {
	data []byte
	err  error
}

// peekPieces is more than the number of pieces that fetch reads.
const peekPieces = 8

// fetch reads the first piece and the next one.
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

// readPiece calls Read once, on a goroutine of Peek.
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
		return b.end(n, first.err) // the error stays for the next Read
	default:
		b.held = b.held[1:]
	}
	return n, nil
}

// next waits for a piece that was read ahead. It returns false after the last
// one.
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

// end copies the trailers at the end of the body into the existing map, as
// net/http does.
func (b *peekedBody) end(n int, err error) (int, error) {
	if err == io.EOF && b.from.Trailer != nil { //nolint:errorlint // a Reader returns exactly this value
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
