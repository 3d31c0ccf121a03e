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

// maxBodies bounds what WithBodies allows: two of them fit into the buffer of a
// watcher.
const maxBodies = 256 << 10

// WithBodies shows the bodies of requests and responses to watchers that request
// them. Up to maxBytes of each are kept, at most 256 KiB. Without this option, and
// if redact is nil, such a watcher is rejected.
//
// redact returns the part of a body that may be shown. It gets all kept bytes
// as they were sent, which may end anywhere and may be compressed. It should
// withhold what it cannot parse. contentType is cut to 256 bytes. redact may
// change and keep its argument. It runs in the goroutine of a watcher, for
// several watchers at once. If it panics, the body is withheld.
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

// shown returns e with redacted bodies. They are cut after the redaction, so that
// it sees all kept bytes.
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

func (r *Registry) redacted(b *Body, most int) (out *Body) {
	if b == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			out = &Body{Cut: true}
		}
	}()
	out = &Body{Data: r.redact(b.contentType, b.Data), Cut: b.Cut}
	if len(out.Data) > most {
		out.Data, out.Cut = out.Data[:most:most], true
	}
	return out
}

// excerpt is the beginning of a body, for one watcher. Its bytes use room of the
// watcher's buffer.
type excerpt struct {
	w           *watcher
	room        *buffer
	contentType string

	mu   sync.Mutex
	data []byte
	cut  bool
	over bool
}

// take keeps a part of a body. It may come late, because the body may be read
// after the end of its request.
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

// miss marks the body as cut.
func (x *excerpt) miss() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
}

// grow makes room for n more bytes, if the buffer has it.
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

// end releases the room of the excerpt. It is called with mu held.
func (x *excerpt) end() {
	x.room.release(int64(cap(x.data)))
	x.data, x.over = nil, true
}

// body ends the excerpt. It returns nil when there is nothing to show.
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

// bodies are those of one request, for one watcher.
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

// drop releases the room of bodies that will not be shown.
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

// contentType returns the bounded content type, which is kept with the body.
func contentType(header layer.Header) string {
	return strings.Clone(cut(header.Get("content-type")))
}

// HTTP/2 error codes, RFC 9113 §7.
const (
	resetInternal uint32 = 2
	resetRefused  uint32 = 7
	resetCancel   uint32 = 8
)

// streamError has the fields of net/http's unexported error of an HTTP/2 stream
// reset, whose method As fills any struct with these fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream reset: " + strconv.Itoa(int(e.Code)) }

// resetCode returns the HTTP/2 error code for the end of a request, or nil. ctx is
// the context of the request.
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

// abortCode returns the reset code of a response that its own side aborted, as
// net/http's HTTP/2 sends it.
func abortCode(ctx context.Context) *uint32 {
	if ctx.Err() != nil {
		return new(resetCancel)
	}
	return new(resetInternal)
}

// grpcStatus parses a grpc-status field. It returns nil if it is not a number.
func grpcStatus(s string) *codes.Code {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return nil
	}
	return new(codes.Code(n))
}
