package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

const (
	peekSize   = 2 << 10               // largest size of a piece in bytes
	peekMost   = 16 << 10              // longest body that Peek reads to its end, in bytes
	peekPieces = peekMost/peekSize + 1 // the last piece shows whether the body continues
	peekWait   = time.Millisecond      // longest wait after the first bytes
)

// Peek reads ahead in the body of a gRPC response, because the trailers at its end may report a
// failure. It waits for the first bytes, and then at most a millisecond for the end of the body.
// The result ahead is a response from which all bytes of the body can still be read. The result
// whole is true if the body has ended without an error. Peek returns other responses unchanged,
// because they report failures in the status. It is part of [layer.Replayer].
//
// Peek costs a goroutine, and some KiB of memory until the first bytes were read. The goroutine may
// wait for the next bytes after Peek has returned.
func (Replayer) Peek(ctx context.Context, rsp *http.Response) (ahead *http.Response, whole bool) {
	switch {
	case rsp == nil || ended(rsp):
		return rsp, true
	case rsp.ProtoMajor < 2 || rsp.ContentLength > peekMost || !strings.HasPrefix(rsp.Header.Get("Content-Type"), grpcType):
		return rsp, false
	}
	out := *rsp
	// out has its own maps, because the caller may change them while observers
	// read rsp and the trailers arrive.
	out.Header, out.Trailer = rsp.Header.Clone(), rsp.Trailer.Clone()
	body := &peekedBody{ReadCloser: rsp.Body, pieces: make(chan piece, peekPieces)}
	out.Body = &trailerFilter{wrappedBody: wrappedBody{body}, from: &rsp.Trailer, to: &out.Trailer}
	go body.fetch()
	var late <-chan time.Time
	for body.held.err == nil {
		select {
		case p, ok := <-body.pieces:
			if !ok {
				return &out, false
			}
			body.held = piece{append(body.held.data, p.data...), p.err}
			if late == nil {
				late = time.After(peekWait)
			}
		case <-late:
			return &out, false
		case <-ctx.Done():
			return &out, false
		}
	}
	return &out, body.held.err == io.EOF //nolint:errorlint // a Reader returns exactly this value
}

// peekedBody is a body that first returns the bytes that Peek has read, and then the rest
// of the body.
type peekedBody struct {
	io.ReadCloser            // the original body
	pieces        chan piece // pieces from fetch, which closes the channel after the last one
	held          piece      // bytes and error that Read returns next; used by the reader only
}

// piece is the result of one Read of the body.
type piece struct {
	data []byte
	err  error
}

// fetch reads at most peekPieces pieces of body and sends them to b.pieces. It never blocks
// on this channel, because the channel has room for all pieces. Peek starts it on a new
// goroutine.
func (b *peekedBody) fetch() {
	defer close(b.pieces)
	for range peekPieces {
		p := readPiece(b.ReadCloser)
		b.pieces <- p
		if p.err != nil {
			return
		}
	}
}

// readPiece returns the result of one Read. It returns a panic as an error.
func readPiece(body io.Reader) (p piece) {
	defer panics.Recover(&p.err)
	buf := make([]byte, peekSize)
	n, err := body.Read(buf)
	return piece{buf[:n], err}
}

func (b *peekedBody) Read(p []byte) (int, error) {
	if len(b.held.data) == 0 && b.held.err == nil {
		next, ok := <-b.pieces
		if !ok {
			return b.ReadCloser.Read(p)
		}
		b.held = next
	}
	n := copy(p, b.held.data)
	if b.held.data = b.held.data[n:]; len(b.held.data) > 0 {
		return n, nil
	}
	return n, b.held.err
}
