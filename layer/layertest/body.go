package layertest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// requestBody is the body of a request that a check sends. It counts reads and closes, so that a
// check finds a layer that reads or closes a rejected request's body.
type requestBody struct {
	data          *strings.Reader
	reads, closes atomic.Int64
}

func newRequestBody(i int) *requestBody {
	return &requestBody{data: strings.NewReader(requestData(i))}
}

// requestData returns the body content for request i.
func requestData(i int) string { return "request " + strconv.Itoa(i) }

func (b *requestBody) Read(p []byte) (int, error) {
	b.reads.Add(1)
	return b.data.Read(p)
}

func (b *requestBody) Close() error {
	b.closes.Add(1)
	return nil
}

var errBodyClosed = errors.New("read of a closed body")

// responseBody is the body of a response from the inner service. A Read returns at most 8 bytes.
// Read fails after the request context has ended.
type responseBody struct {
	ctx   context.Context // the context of the call of the inner service
	err   error           // returned instead of io.EOF, if not nil
	onEnd func()          // called once, when the body is closed, read to its end, or failed

	mu     sync.Mutex
	data   string
	closed bool
	ended  bool
}

// responseData returns the body content for response i.
func responseData(i int) string { return "response " + strconv.Itoa(i) + ", in several pieces" }

// Read returns up to 8 bytes, so that a body takes several Reads, and then the planned end. It fails
// once the call's context has ended.
func (b *responseBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, errBodyClosed
	case b.ctx.Err() != nil:
		// Unread data is lost, so that the checks notice a context that ends too early.
		b.end()
		return 0, context.Cause(b.ctx)
	case b.data != "":
		n := copy(p[:min(len(p), 8)], b.data)
		b.data = b.data[n:]
		return n, nil
	}
	b.end()
	if b.err != nil {
		return 0, b.err
	}
	return 0, io.EOF
}

// Close ends the body.
func (b *responseBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.end()
	return nil
}

// end calls onEnd, but only once. The caller holds mu.
func (b *responseBody) end() {
	if !b.ended {
		b.ended = true
		b.onEnd()
	}
}

func (b *responseBody) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
