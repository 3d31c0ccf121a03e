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

// maxBodies is the upper limit for WithBodies' maxBytes. A request body and a response body of
// this size fit together into a watcher's buffer.
const maxBodies = 256 << 10

// WithBodies allows watchers to request bodies. Up to maxBytes bytes from the beginning of each
// body are kept. A maxBytes above 256 KiB means 256 KiB. A watcher that requests bodies is
// rejected with PermissionDenied without this option, or if maxBytes is not positive or redact is
// nil.
//
// redact returns the part of a body that may be shown. It receives the kept bytes as they were
// sent; they may end in the middle of a value and may be compressed. redact should return nil for
// a body that it cannot parse. contentType is the content-type field, cut to 256 bytes. redact
// may change and keep body. It is called concurrently. If it panics, the body is shown as empty
// and cut.
//
// net/http may send a body, such as a file, without passing its bytes through the layer. Such a
// body is shown as cut.
func WithBodies(maxBytes int, redact func(contentType string, body []byte) []byte) RegistryOption {
	return func(r *Registry) {
		r.maxBody, r.redact = min(maxBytes, maxBodies), redact
		if maxBytes <= 0 {
			r.redact = nil
		}
	}
}

// shown returns the event to send to the watcher in place of e. It applies WithBodies' function to the
// bodies and cuts them to the length that the watcher requested, on a copy, because other watchers get
// the same event. An event without bodies is returned as it is.
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

// redacted returns the body that a watcher may see instead of b: the result of WithBodies' function,
// cut to limit bytes. It returns nil for a nil b. If the function panics, the body is empty and marked
// as cut, so that nothing secret is shown.
func (r *Registry) redacted(b *Body, limit int) (out *Body) {
	if b == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			out = &Body{Cut: true}
		}
	}()
	// The watcher may ask for less than the registry keeps.
	out = &Body{Data: r.redact(b.contentType, b.Data), Cut: b.Cut}
	if len(out.Data) > limit {
		out.Data, out.Cut = out.Data[:limit:limit], true
	}
	return out
}

// excerpt keeps the beginning of one body for one watcher, until the ResponseEnd is sent. Its bytes
// count against maxText in the watcher's buffer.
type excerpt struct {
	w           *watcher
	room        *buffer // the buffer of w, in which data takes room
	contentType string

	mu   sync.Mutex // guards the fields below
	data []byte
	cut  bool // the body continues after data
	over bool // the excerpt has ended, and keeps nothing any more
}

// take adds the bytes of p that follow those kept so far, up to WithBodies' limit. p is the part of the
// body at the given offset; a retry sends a body again from offset 0, so parts may be known already.
// After a gap, p is ignored. If the bytes do not fit into the watcher's buffer, or the watcher has been
// closed, the excerpt ends.
func (x *excerpt) take(offset int64, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	have := int64(len(x.data))
	if x.over || offset > have || offset+int64(len(p)) <= have {
		return // known, or after a gap
	}
	if x.w.buf.Load() == nil { // the watcher has been closed
		x.end()
		return
	}
	p = p[have-offset:]
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

// markCut records that the body continues after the excerpt.
func (x *excerpt) markCut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
}

// grow makes room for n more bytes in data. It returns false if they do not fit into the
// watcher's buffer. The caller holds mu.
func (x *excerpt) grow(n int) bool {
	size := len(x.data) + n
	if size <= cap(x.data) {
		return true
	}
	// Doubling keeps the number of copies small; most bodies fit into the first 512 bytes.
	size = min(max(size, 2*cap(x.data), 512), x.w.reg.maxBody)
	if !x.room.reserve(int64(size - cap(x.data))) {
		return false
	}
	x.data = append(make([]byte, 0, size), x.data...)
	return true
}

// end discards the kept bytes and releases their room in the buffer. Later calls of take
// are ignored. The caller holds mu.
func (x *excerpt) end() {
	x.room.release(int64(cap(x.data)))
	x.data, x.over = nil, true
}

// body ends the excerpt and returns the kept bytes. It returns nil if no byte was kept and none
// was cut off.
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

// bodies holds the excerpts from a request's and a response's body, for one watcher.
type bodies struct{ request, response excerpt }

// newBodies returns the excerpts of a request with the given header, or nil if the watcher w has been
// closed.
func newBodies(w *watcher, header layer.Header) *bodies {
	room := w.buf.Load()
	if room == nil {
		return nil
	}
	b := &bodies{request: excerpt{w: w, room: room}, response: excerpt{w: w, room: room}}
	b.request.contentType = contentType(header)
	return b
}

// drop ends both excerpts, which discards their bytes. b may be nil.
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

// contentType returns a copy of header's content-type field, cut to 256 bytes.
func contentType(header layer.Header) string {
	return strings.Clone(cut(header.Get("content-type")))
}

// The HTTP/2 error codes that this package reports for errors without a code of their own.
// They are from RFC 9113, section 7.
const (
	resetInternal uint32 = 2
	resetRefused  uint32 = 7
	resetCancel   uint32 = 8
)

// streamError mirrors net/http's unexported error for a reset HTTP/2 stream. [errors.As] fills
// it, because that error's As method fills any struct with these fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream reset: " + strconv.Itoa(int(e.Code)) }

// resetCode returns the HTTP/2 error code that an event shows for a request that ended with err; ctx is
// the request's. A complete response, and one that its reader closed early, has none. A rejection has
// REFUSED_STREAM. Otherwise the code is the one that err carries, or CANCEL if err comes from the end
// of a context, or nil.
func resetCode(ctx context.Context, err error) *uint32 {
	if err == nil || errors.Is(err, layer.ErrBodyClosedEarly) {
		return nil // complete, or closed early by its reader
	}
	var stream streamError
	var coded interface {
		error
		ResetCode() uint32
	}
	// A rejection stays one, whatever it wraps.
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

// abortCode returns the HTTP/2 error code with which net/http's server resets a response that its
// handler aborted. It is CANCEL if ctx has ended, and INTERNAL_ERROR otherwise.
func abortCode(ctx context.Context) *uint32 {
	if ctx.Err() != nil {
		return new(resetCancel)
	}
	return new(resetInternal)
}

// grpcStatus parses s, a grpc-status field's value. It returns nil if s is not a number.
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
