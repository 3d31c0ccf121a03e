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

// maxBodies is the upper limit of the parameter maxBytes of WithBodies, in bytes. A request
// body and a response body of this size fit together into the buffer of a watcher.
const maxBodies = 256 << 10

// WithBodies allows watchers to request the bodies of requests and responses. At most
// maxBytes bytes from the beginning of each body are kept. A maxBytes above 256 KiB means
// 256 KiB. A watcher that requests bodies is rejected with PermissionDenied without this
// option, or if maxBytes is not positive or redact is nil.
//
// redact returns the part of a body that may be shown. Its argument body holds the kept
// bytes as they were sent. They may end in the middle of a value and may be compressed.
// redact should return nil for a body that it cannot parse. contentType is the content-type
// field, cut to 256 bytes. redact may change and keep body. It is called concurrently. If
// it panics, the body is shown as empty and cut.
//
// net/http may send a body, such as the content of a file, without passing its bytes
// through the layer. Such a body is shown as cut.
func WithBodies(maxBytes int, redact func(contentType string, body []byte) []byte) RegistryOption {
	return func(r *Registry) {
		r.maxBody, r.redact = min(maxBytes, maxBodies), redact
		if maxBytes <= 0 {
			r.redact = nil
		}
	}
}

// shown returns the event that is sent to the watcher in place of e. If e has no bodies,
// shown returns e. Otherwise it returns a copy of e. Each body of the copy is the result of
// the function of WithBodies, cut to the length that the watcher requested.
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

// redacted returns the body that a watcher sees instead of b: the result of the function of
// WithBodies, cut to limit bytes. If b is nil, redacted returns nil. If the function
// panics, redacted returns an empty Body that is marked as cut.
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

// excerpt is the beginning of one body, kept for one watcher. Its bytes take room in the buffer of
// the watcher, which has room for maxText bytes of bodies and events.
type excerpt struct {
	w           *watcher
	room        *buffer
	contentType string

	mu   sync.Mutex
	data []byte
	cut  bool
	over bool
}

// take appends to the excerpt the bytes of p that it does not have yet, up to the limit of
// WithBodies. p is the part of the body at the given offset. take ignores p if earlier bytes are
// missing, or if the excerpt has ended. It ends the excerpt if the buffer has no room for the
// bytes, or if the watcher has been closed.
func (x *excerpt) take(offset int64, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	have := int64(len(x.data))
	if x.over || offset > have || offset+int64(len(p)) <= have {
		return // known, or after a gap
	}
	if x.w.buf.Load() == nil {
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

// markCut records that the body has bytes after the end of the excerpt.
func (x *excerpt) markCut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
}

// grow makes room for n more bytes in the field data. It returns false if the buffer of the
// watcher has no room for n more bytes. The caller holds mu.
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

// bodies has the excerpts of the bodies of one request and its response, for one watcher.
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

// contentType returns a copy of the content-type field of header, cut to 256 bytes.
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

// streamError has the fields of net/http's unexported error of an HTTP/2 stream reset.
// [errors.As] fills it, because the method As of that error fills any struct with these
// fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream reset: " + strconv.Itoa(int(e.Code)) }

// resetCode returns the HTTP/2 error code of a request with the context ctx that ended with err. It
// returns nil for a complete response, and for a body that its reader closed early. A rejection has
// the code REFUSED_STREAM. If err has its own code, this is the result. Otherwise the result is
// CANCEL if ctx has ended or err is the error of a context, and nil for any other error.
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

// abortCode returns the HTTP/2 error code with which net/http's server resets a response that
// its handler aborted. It is CANCEL if ctx has ended, and INTERNAL_ERROR otherwise.
func abortCode(ctx context.Context) *uint32 {
	if ctx.Err() != nil {
		return new(resetCancel)
	}
	return new(resetInternal)
}

// grpcStatus parses s, the value of a grpc-status field. It returns nil if s is not a
// number.
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
