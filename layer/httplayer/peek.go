package httplayer

import (
	"context"
	"io"
	"net/http"
	"time"

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
