package layer

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// BodyReplay is a request body that can be sent several times. Protocol
// packages build their [Replay] around it. Its methods and readers are safe for
// concurrent use.
//
// The bytes read are kept up to the limit. Until the source has been read to
// its end, one reader is valid at a time: Next fails the reader before. After
// that all readers read the kept bytes.
type BodyReplay struct {
	source io.ReadCloser
	get    func() (io.ReadCloser, error) // nil: the bytes are kept
	limit  int64

	mu       sync.Mutex
	moved    sync.Cond    // the source returned, or a reader was closed
	first    replayReader // avoids an allocation
	current  *replayReader
	open     int    // readers
	kept     []byte // from base
	base     int64
	full     bool  // there are no further readers
	err      error // the end of the source
	fetching bool  // a reader reads from the source
	ended    bool
	closed   bool // the source
}

var (
	errReplayClosed = errors.New("read of a closed request body")
	errReplayOld    = errors.New("read of the request body of an earlier attempt")
	errReplayBroken = errors.New("reading the request body panicked")
)

// ReplayBody returns a replay of body that keeps up to limit bytes, or calls
// get for further bodies if it is not nil. It reads nothing yet. With a limit
// of 0 or less the body can be sent again until its first byte was read.
//
// The source is closed once, after End and after the last reader was closed. A
// reader of a rejected request is not closed, and leaves the source open.
func ReplayBody(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) *BodyReplay {
	b := &BodyReplay{}
	b.init(body, get, limit)
	return b
}

func (b *BodyReplay) init(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) {
	b.source, b.get, b.limit = body, get, max(limit, 0)
	b.moved.L = &b.mu
}

// Next returns a reader of the body from its beginning. It returns false if the
// body was larger than the limit, reading it failed, or End was called. The
// service that gets the reader closes it.
func (b *BodyReplay) Next() (io.ReadCloser, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.get != nil && b.current != nil {
		body, err := b.get()
		return body, err == nil
	}
	if b.full || b.err != nil && !errors.Is(b.err, io.EOF) {
		return nil, false
	}
	r := &b.first
	if b.current != nil {
		r = &replayReader{}
		if b.err == nil {
			b.drop(b.current, errReplayOld)
		}
	}
	r.body, b.current = b, r
	if b.get != nil {
		return b.source, true
	}
	b.open++
	return r, true
}

// Whole reports whether Next leaves the readers before valid, because the body
// was read to its end and all of it is kept.
func (b *BodyReplay) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.get != nil || errors.Is(b.err, io.EOF) && !b.full
}

// End declares that no more attempts follow. Open readers remain valid.
func (b *BodyReplay) End() {
	b.mu.Lock()
	b.ended, b.full = true, true
	b.trim()
	b.unlockAndClose()
}

// drop fails r.
func (b *BodyReplay) drop(r *replayReader, err error) {
	if r.err == nil {
		r.err = err
		b.open--
		b.moved.Broadcast()
	}
}

// trim releases the kept bytes if no further reader needs them.
func (b *BodyReplay) trim() {
	if end := b.base + int64(len(b.kept)); b.full && b.err == nil && b.current != nil && b.current.pos == end {
		b.kept, b.base = nil, end
	}
}

// unlockAndClose closes the source after the last reader.
func (b *BodyReplay) unlockAndClose() {
	last := b.ended && b.open == 0 && b.current != nil && b.get == nil && !b.closed
	b.closed = b.closed || last
	b.mu.Unlock()
	if last {
		_ = b.source.Close()
	}
}

// replayReader is the body of one attempt. Its fields are guarded by the mutex
// of its body.
type replayReader struct {
	body *BodyReplay
	pos  int64
	err  error // returned by all Reads
}

func (r *replayReader) Read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case r.err != nil:
			return 0, r.err
		case len(p) == 0:
			return 0, nil
		case r.pos < b.base+int64(len(b.kept)):
			n := copy(p, b.kept[r.pos-b.base:])
			r.pos += int64(n)
			b.trim()
			return n, nil
		case b.err != nil:
			return 0, b.err
		case !b.fetching:
			return r.fetch(p)
		}
		b.moved.Wait()
	}
}

// fetch reads from the source, without the mutex.
func (r *replayReader) fetch(p []byte) (n int, err error) {
	b := r.body
	b.fetching = true
	b.mu.Unlock()
	err = errReplayBroken // unless the source returns
	defer func() {
		b.mu.Lock()
		b.fetching = false
		r.take(p[:n], err)
		b.moved.Broadcast()
		if n > 0 {
			err = nil // the next Read returns it
		}
	}()
	return b.source.Read(p)
}

// take keeps the bytes that r got from the source. If r is no longer valid,
// they belong to the current reader.
func (r *replayReader) take(p []byte, err error) {
	b := r.body
	if b.err = err; len(p) == 0 {
		return
	}
	b.full = b.full || int64(len(b.kept)+len(p)) > b.limit
	if r.err == nil {
		r.pos += int64(len(p))
	}
	if r.err == nil && b.full {
		b.kept, b.base = nil, r.pos
	} else {
		b.kept = append(b.kept, p...)
	}
}

func (r *replayReader) Close() error {
	r.body.mu.Lock()
	r.body.drop(r, errReplayClosed)
	r.body.unlockAndClose()
	return nil
}

// Replayer is the part of a protocol that [Retry] and [Hedge] need. The default
// supports requests and responses that are pointers to structs with a field
// Body of type [io.ReadCloser]. It sends any other request unchanged, any
// number of times.
//
// An optional method is Outline(rsp Rsp) string, which describes a response in
// an [Explanation].
type Replayer[Req, Rsp any] interface {
	// Idempotent reports whether sending req twice has the effect of sending
	// it once.
	Idempotent(req Req) bool

	// Replay prepares req for several attempts, and keeps up to limit bytes of
	// its body. It returns nil if req can be sent unchanged any number of
	// times, because it has no body. It reads nothing yet.
	Replay(req Req, limit int64) Replay[Req]

	// RetryAfter returns the wait that rsp, or err, requests before another
	// attempt, or false. A negative wait forbids another attempt.
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)

	// Peek waits for the first piece of the body of rsp if its trailers may
	// report a failure. It reports whether the response ended there, so that it
	// has its trailers. whole is the same response with its whole body. If it
	// has not ended, only whole may be used. Peek ends when ctx does. A
	// protocol without trailers returns rsp and false.
	Peek(ctx context.Context, rsp Rsp) (whole Rsp, ended bool)

	// Drain discards a response: it reads a small rest of the body, so that the
	// connection can be used again, and closes it.
	Drain(rsp Rsp)
}

// Replay is one request that may be sent several times. Its methods are safe
// for concurrent use. A caller closes the body of an attempt that was not sent.
type Replay[Req any] interface {
	// Next returns the request for one more attempt, with its own body from the
	// beginning. It returns false if the body was larger than the limit, or
	// reading it failed. Bodies of earlier attempts are valid only if Whole
	// returned true.
	Next() (Req, bool)

	// Whole reports whether the body was read to its end and can be sent again.
	Whole() bool

	// End declares that no more attempts follow. Running ones continue.
	End()
}

// WithReplayer sets the Replayer of a protocol.
func WithReplayer[Req, Rsp any](r Replayer[Req, Rsp]) Option[Rsp] {
	check(r != nil, "WithReplayer: nil Replayer")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.replayer = r })
}

// replayerOf returns the Replayer of the options, or the default.
func replayerOf[Req, Rsp any](o options[Rsp]) Replayer[Req, Rsp] {
	if given, ok := o.replayer.(Replayer[Req, Rsp]); ok {
		return given
	}
	r := fieldReplayer[Req, Rsp]{method: -1, getBody: -1, requests: bodyAccessorOf[Req](), responses: bodyAccessorOf[Rsp]()}
	t := reflect.TypeFor[Req]()
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return r
	}
	for i := range t.Elem().NumField() {
		switch f := t.Elem().Field(i); {
		case f.Name == "Method" && f.Type.Kind() == reflect.String:
			r.method = i
		case f.Name == "GetBody" && f.Type == reflect.TypeFor[func() (io.ReadCloser, error)]():
			r.getBody = i
		}
	}
	return r
}

// fieldReplayer is the default Replayer. It finds the parts of a request by the
// names of its fields. An index is -1 without the field.
type fieldReplayer[Req, Rsp any] struct {
	method, getBody int
	requests        bodyAccessor[Req]
	responses       bodyAccessor[Rsp]
}

// Idempotent decides by the method (RFC 9110, section 9.2.2). A request without
// one is idempotent.
func (r fieldReplayer[Req, Rsp]) Idempotent(req Req) bool {
	if r.method < 0 {
		return true
	}
	v := reflect.ValueOf(req)
	if v.IsNil() {
		return true
	}
	switch v.Elem().Field(r.method).String() {
	case "", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// Replay uses GetBody of the request, if any, or keeps the bytes read. Each
// attempt gets a shallow copy of the request without GetBody, so that no
// service below repeats it.
func (r fieldReplayer[Req, Rsp]) Replay(req Req, limit int64) Replay[Req] {
	body := r.requests.body(req)
	if body == nil {
		return nil
	}
	k := &fieldReplay[Req, Rsp]{req: req, fields: r}
	var get func() (io.ReadCloser, error)
	if r.getBody >= 0 {
		get, _ = reflect.TypeAssert[func() (io.ReadCloser, error)](reflect.ValueOf(req).Elem().Field(r.getBody))
	}
	k.init(body, get, limit)
	return k
}

// RetryAfter returns that of the error.
func (r fieldReplayer[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return RetryAfter(err)
}

// Peek returns rsp.
func (r fieldReplayer[Req, Rsp]) Peek(_ context.Context, rsp Rsp) (Rsp, bool) { return rsp, false }

func (r fieldReplayer[Req, Rsp]) Drain(rsp Rsp) {
	if body := r.responses.body(rsp); body != nil {
		DrainBody(body)
	}
}

// fieldReplay is the Replay of a request with a body.
type fieldReplay[Req, Rsp any] struct {
	BodyReplay
	req    Req
	fields fieldReplayer[Req, Rsp]
}

func (k *fieldReplay[Req, Rsp]) Next() (Req, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return k.req, false
	}
	again := reflect.New(reflect.TypeFor[Req]().Elem())
	again.Elem().Set(reflect.ValueOf(k.req).Elem())
	again.Elem().Field(k.fields.requests.index).Set(reflect.ValueOf(body))
	if k.fields.getBody >= 0 {
		again.Elem().Field(k.fields.getBody).SetZero()
	}
	copied, _ := reflect.TypeAssert[Req](again)
	return copied, true
}

// The limits of DrainBody.
const (
	drainBytes = 8 << 10
	drainTime  = 50 * time.Millisecond
)

// DrainBody discards a response body: it reads up to 8 KiB for up to 50 ms, so
// that the connection can be used again, and closes it. It is for Drain of a
// [Replayer]. The body may be closed concurrently.
func DrainBody(body io.ReadCloser) {
	closed := sync.OnceFunc(func() { body.Close() }) // a panic in the timer is repeated here
	late := time.AfterFunc(drainTime, func() { _ = panics.Contain(closed) })
	defer late.Stop()
	defer closed()
	// One byte more than the limit, because a read at the limit does not see the end.
	io.CopyN(io.Discard, body, drainBytes+1) //nolint:errcheck // the body is discarded
}
