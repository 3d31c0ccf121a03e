package layertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
)

// requestBody is the body of a request under test. A layer that rejects the
// request must not have touched it.
type requestBody struct {
	data  *strings.Reader
	reads atomic.Int64
	close atomic.Int64
}

func newRequestBody(i int) *requestBody {
	return &requestBody{data: strings.NewReader(requestData(i))}
}

// requestData is the body of call i, and of no other.
func requestData(i int) string { return fmt.Sprintf("request %d", i) }

func (b *requestBody) Read(p []byte) (int, error) {
	b.reads.Add(1)
	return b.data.Read(p)
}

func (b *requestBody) Close() error {
	b.close.Add(1)
	return nil
}

// touched describes the operations on the body, or returns "".
func (b *requestBody) touched() string {
	switch {
	case b.reads.Load() > 0:
		return "its body was read"
	case b.close.Load() > 0:
		return "its body was closed"
	}
	return ""
}

var errBodyClosed = errors.New("read of a closed body")

// responseBody is the body of a response as a transport hands it out: it comes
// in pieces, and it breaks when the context of its request ends.
type responseBody struct {
	ctx    context.Context // what the inner service was called with
	breaks error           // ends the data, in place of io.EOF
	over   func()          // called once, at the end

	mu     sync.Mutex
	data   string
	closes int
	ended  bool
}

// responseData is what the inner service answers to call i, and to no other.
func responseData(i int) string { return fmt.Sprintf("response %d, in several pieces", i) }

func (b *responseBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A request that was cancelled breaks its body, however much of it is
	// there: that is what makes a context that ends too soon show.
	switch {
	case b.closes > 0:
		return 0, errBodyClosed
	case b.ctx.Err() != nil:
		b.end()
		return 0, context.Cause(b.ctx)
	case b.data != "":
		// In small pieces, so that half a body can be read.
		n := copy(p[:min(len(p), 8)], b.data)
		b.data = b.data[n:]
		return n, nil
	}
	b.end()
	if b.breaks != nil {
		return 0, b.breaks
	}
	return 0, io.EOF
}

func (b *responseBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	b.end()
	return nil
}

func (b *responseBody) end() {
	if !b.ended {
		b.ended = true
		b.over()
	}
}

func (b *responseBody) closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closes > 0
}
