package tap

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// maxBodies is the upper limit of the maxBytes of WithBodies. Two bodies of this size
// fit into the buffer of a watcher.
const maxBodies = 256 << 10

// WithBodies shows the bodies of requests and responses to watchers that request them.
// The first maxBytes of each body are kept, at most 256 KiB. Without this option, or if
// redact is nil, a watcher that requests bodies is rejected.
//
// redact returns the part of a body that may be shown. It gets the kept bytes as they
// were sent: they may end anywhere and may be compressed. It should withhold a body
// that it cannot parse. contentType is cut to 256 bytes. redact may change and keep its
// argument. Several watchers call it concurrently. If it panics, the body is withheld.
//
// A body that net/http copies by itself, such as a file, is shown as cut.
func WithBodies(maxBytes int, redact func(contentType string, body []byte) []byte) RegistryOption {
	return registryOption(func(r *Registry) {
		r.maxBody, r.redact = min(maxBytes, maxBodies), redact
		if maxBytes <= 0 {
			r.redact = nil
		}
	})
}

// shown returns e with redacted bodies. The function redact gets all kept bytes. Its
// result is cut to the length that the watcher requested.
func (w *watcher) shown(e Event) Event {
	if e.ResponseEnd == nil || e.ResponseEnd.RequestBody == nil && e.ResponseEnd.ResponseBody == nil {
		return e
	}
	end := *e.ResponseEnd
	end.RequestBody = w.reg.redacted(end.RequestBody, w.body)
	end.ResponseBody = w.reg.redacted(end.ResponseBody, w.body)
	e.ResponseEnd = &end
	return e
}

// redacted returns b after redact, cut to limit bytes. It returns nil if b is nil.
func (r *Registry) redacted(b *Body, limit int) (out *Body) {
	if b == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			out = &Body{Cut: true}
		}
	}()
	out = &Body{Data: r.redact(b.contentType, b.Data), Cut: b.Cut}
	if len(out.Data) > limit {
		out.Data, out.Cut = out.Data[:limit:limit], true
	}
	return out
}

// excerpt is the beginning of one body, kept for one watcher. Its bytes count as text
// in the buffer of the watcher.
type excerpt struct {
	w           *watcher
	room        *buffer
	contentType string

	mu   sync.Mutex
	data []byte
	cut  bool
	over bool
}

// take keeps the bytes of p that follow the kept ones. at is the offset of p in the
// body. Parts that arrive after body or drop was called are ignored.
func (x *excerpt) take(at int64, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	have := int64(len(x.data))
	if x.over || at > have || at+int64(len(p)) <= have {
		return // known, or after a gap
	}
	if x.w.buf.Load() == nil {
		x.end()
		return
	}
	p = p[have-at:]
	most := x.w.reg.maxBody - len(x.data)
	if len(p) > most {
		p, x.cut = p[:most], true
	}
	if !x.grow(len(p)) {
		x.end()
		x.cut = true
		return
	}
	x.data = append(x.data, p...)
}

// markCut marks the body as cut.
func (x *excerpt) markCut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
}

// grow increases the capacity by n bytes. It returns false if the buffer of the watcher
// has no room for them.
func (x *excerpt) grow(n int) bool {
	size := len(x.data) + n
	if size <= cap(x.data) {
		return true
	}
	size = min(max(size, 2*cap(x.data), 512), x.w.reg.maxBody)
	if !x.room.reserve(int64(size - cap(x.data))) {
		return false
	}
	x.data = append(make([]byte, 0, size), x.data...)
	return true
}

// end releases the bytes and ignores later parts. The caller holds mu.
func (x *excerpt) end() {
	x.room.release(int64(cap(x.data)))
	x.data, x.over = nil, true
}

// body ends the excerpt and returns its bytes, or nil for an empty body.
func (x *excerpt) body() *Body {
	x.mu.Lock()
	defer x.mu.Unlock()
	data := x.data
	x.end()
	if len(data) == 0 && !x.cut {
		return nil
	}
	return &Body{Data: data, Cut: x.cut, contentType: x.contentType}
}

// bodies has the excerpts of one request and its response, for one watcher.
type bodies struct{ request, response excerpt }

func newBodies(w *watcher, header layer.Header) *bodies {
	room := w.buf.Load()
	if room == nil {
		return nil
	}
	b := &bodies{request: excerpt{w: w, room: room}, response: excerpt{w: w, room: room}}
	b.request.contentType = contentType(header)
	return b
}

// drop ends both excerpts without showing them.
func (b *bodies) drop() {
	if b == nil {
		return
	}
	for _, x := range []*excerpt{&b.request, &b.response} {
		x.mu.Lock()
		x.end()
		x.mu.Unlock()
	}
}

// contentType returns a copy of the content-type field, cut to 256 bytes.
func contentType(header layer.Header) string {
	return strings.Clone(cut(header.Get("content-type")))
}

// HTTP/2 error codes, RFC 9113 §7.
const (
	resetInternal uint32 = 2
	resetRefused  uint32 = 7
	resetCancel   uint32 = 8
)

// streamError matches net/http's unexported error of an HTTP/2 stream reset. The As
// method of that error fills any struct with these fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream reset: " + strconv.Itoa(int(e.Code)) }

// resetCode returns the HTTP/2 error code of a request that ended with err, or nil if
// it has no code. ctx is the context of the request.
func resetCode(ctx context.Context, err error) *uint32 {
	if err == nil || errors.Is(err, layer.ErrBodyClosedEarly) {
		return nil // complete, or closed early by its reader
	}
	var stream streamError
	var coded interface {
		error
		ResetCode() uint32
	}
	switch {
	case errors.Is(err, layer.ErrNotReady):
		return new(resetRefused)
	case errors.As(err, &stream):
		return &stream.Code
	case errors.As(err, &coded):
		return new(coded.ResetCode())
	case ctx.Err() != nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return new(resetCancel)
	}
	return nil
}

// abortCode returns the reset code that net/http's HTTP/2 server sends when a handler
// aborts a response: CANCEL if ctx has ended, otherwise INTERNAL_ERROR.
func abortCode(ctx context.Context) *uint32 {
	if ctx.Err() != nil {
		return new(resetCancel)
	}
	return new(resetInternal)
}

// grpcStatus parses a grpc-status field. It returns nil if it is not a number.
func grpcStatus(s string) *codes.Code {
	if s == "" { // the error of ParseUint allocates
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return nil
	}
	return new(codes.Code(n))
}
