package layer

import (
	"errors"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// BodyReplay is a request body that can be sent several times, one after the
// other or concurrently. Protocol packages build their [Replay] around it. Its
// methods and readers are safe for concurrent use.
//
// One reader at a time reads the source, when it needs more. The bytes are kept
// until End, up to the limit. After that there are no more attempts, and only
// the reader that is furthest continues; the others fail.
type BodyReplay struct {
	mu      sync.Mutex
	moved   sync.Cond // the source gave something, or a reader was closed
	source  io.ReadCloser
	limit   int64
	readers []*replayReader // that are open
	first   replayReader    // of every request, so it has no allocation of its own
	room    [2]*replayReader
	handed  bool // first was given out

	kept    []byte // all that the source gave, unless forgot
	forgot  bool
	pos     int64         // how much the source gave
	err     error         // how the source ended
	fetches *replayReader // is in the source's Read
	ended   bool
	closed  bool // the source is
}

var (
	errReplayClosed  = errors.New("read of a closed request body")
	errReplayRetired = errors.New("this try of the request was given up")
	errReplayBehind  = errors.New("another try is ahead by more than is kept of the request body")
	errReplayBroken  = errors.New("reading the request body panicked")
)

// ReplayBody returns a replay of body that keeps up to limit bytes. It reads
// nothing yet. With a limit of 0 or less the body can be sent again until its
// first byte was read.
//
// The source is closed once, after End and after the last reader was closed. A
// reader of a rejected request is not closed, and leaves the source open.
func ReplayBody(body io.ReadCloser, limit int64) *BodyReplay {
	b := &BodyReplay{}
	b.init(body, limit)
	return b
}

func (b *BodyReplay) init(body io.ReadCloser, limit int64) {
	b.source, b.limit = body, max(limit, 0)
	b.moved.L = &b.mu
	b.readers = b.room[:0]
}

// Next returns a reader of the body from its beginning; false when that is
// gone: the body was larger than the limit, reading it failed, or End was
// called. The readers handed out before stay as they are. The service that
// gets the reader closes it.
func (b *BodyReplay) Next() (io.ReadCloser, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.forgot || b.closed || b.err != nil && !errors.Is(b.err, io.EOF) {
		return nil, false
	}
	r := &b.first
	if b.handed {
		r = &replayReader{}
	}
	b.handed = true
	r.body = b
	b.readers = append(b.readers, r)
	return r, true
}

// Whole reports whether the source was read to its end, and all of it is kept.
func (b *BodyReplay) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Is(b.err, io.EOF) && !b.forgot
}

// Retire fails every reader but the newest.
func (b *BodyReplay) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.readers) > 1 {
		b.drop(b.readers[0], errReplayRetired)
	}
}

// End declares that no more attempts follow. The kept bytes are released as
// soon as no reader needs them.
func (b *BodyReplay) End() {
	b.mu.Lock()
	b.ended = true
	b.forget()
	over := b.over()
	b.mu.Unlock()
	if over {
		b.source.Close()
	}
}

// Close fails every reader, and closes the source.
func (b *BodyReplay) Close() error {
	b.mu.Lock()
	b.ended = true
	for len(b.readers) > 0 {
		b.drop(b.readers[0], errReplayRetired)
	}
	b.forget()
	over := !b.closed
	b.closed = true
	b.mu.Unlock()
	if over {
		return b.source.Close()
	}
	return nil
}

// drop takes r out of the open readers; reading it fails from now on.
func (b *BodyReplay) drop(r *replayReader, err error) {
	for i, open := range b.readers {
		if open == r {
			b.readers = append(b.readers[:i], b.readers[i+1:]...)
			break
		}
	}
	r.err = err
	b.moved.Broadcast()
}

// over reports, once, that the source is to be closed.
func (b *BodyReplay) over() bool {
	if !b.ended || len(b.readers) > 0 || !b.handed || b.closed {
		return false
	}
	b.closed = true
	return true
}

// forget releases the kept bytes if no reader needs them.
func (b *BodyReplay) forget() {
	if !b.ended && !b.forgot && int64(len(b.kept)) <= b.limit {
		return // for the next try
	}
	if b.fetches != nil && b.fetches.err != nil {
		return // the other readers need its bytes
	}
	live := 0
	for _, r := range b.readers {
		if r.err != nil {
			continue
		}
		if live++; live > 1 || r.pos < b.pos {
			return
		}
	}
	b.kept, b.forgot = nil, true
}

// take accepts what r got from the source.
func (b *BodyReplay) take(r *replayReader, p []byte, err error) {
	b.pos += int64(len(p))
	r.pos = b.pos
	b.err = err
	if b.forgot || len(p) == 0 {
		return
	}
	fits := int64(len(b.kept)+len(p)) <= b.limit
	if r.err == nil && !fits {
		b.leaveBehind(r)
	} else {
		// A failed reader may have read for the others.
		b.kept = append(b.kept, p...)
	}
	b.forget()
}

// leaveBehind fails all readers but r.
func (b *BodyReplay) leaveBehind(r *replayReader) {
	for _, other := range b.readers {
		if other != r {
			other.err = errReplayBehind
		}
	}
	b.kept, b.forgot = nil, true
}

// replayReader is the body of one try. Its fields are guarded by the mutex of
// its body.
type replayReader struct {
	body *BodyReplay
	pos  int64
	err  error // returned by all Reads
	shut bool  // Close was called
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
		case r.pos < b.pos:
			n := copy(p, b.kept[r.pos:])
			r.pos += int64(n)
			b.forget()
			return n, nil
		case b.err != nil:
			return 0, b.err
		case b.fetches == nil:
			return r.fetch(p)
		}
		b.moved.Wait()
	}
}

// fetch reads from the source, without the mutex.
func (r *replayReader) fetch(p []byte) (n int, err error) {
	b := r.body
	b.fetches = r
	b.mu.Unlock()
	err = errReplayBroken // unless the source returns
	defer func() {
		b.mu.Lock()
		b.fetches = nil
		b.take(r, p[:n], err)
		b.moved.Broadcast()
		if n > 0 {
			err = nil // it comes with the next Read
		}
	}()
	return b.source.Read(p)
}

func (r *replayReader) Close() error {
	b := r.body
	b.mu.Lock()
	if r.shut {
		b.mu.Unlock()
		return nil
	}
	r.shut = true
	b.drop(r, errReplayClosed)
	b.forget()
	over := b.over()
	b.mu.Unlock()
	if over {
		return b.source.Close()
	}
	return nil
}

// Replayer is the part of a protocol that [Retry] and [Hedge] need. The default
// supports requests and responses that are pointers to structs with a field
// Body of type [io.ReadCloser]. It sends any other request unchanged, any
// number of times.
//
// Optional methods are those of [TrailerPeeker], and Outline(rsp Rsp) string,
// which describes a response in an [Explanation].
type Replayer[Req, Rsp any] interface {
	// Idempotent reports whether sending req twice has the effect of sending
	// it once.
	Idempotent(req Req) bool

	// Replay prepares req for several attempts, and keeps up to limit bytes of
	// its body. It returns nil if req can be sent unchanged any number of
	// times, because it has no body. It reads nothing yet.
	Replay(req Req, limit int64) Replay[Req]

	// After returns how long rsp, or the error that came in its place, asks to
	// wait before the request is sent again; false if it does not say. Less
	// than 0 asks not to send it again at all.
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)

	// Drain discards a response: it reads a small rest of the body, so that the
	// connection can be used again, and closes it.
	Drain(rsp Rsp)
}

// Replay is one request that may be sent several times. Its methods are safe
// for concurrent use.
type Replay[Req any] interface {
	// Next returns the request for one more attempt, with a body of its own
	// that starts at the beginning. It returns false if the body was larger
	// than the limit, or reading it failed.
	Next() (Req, bool)

	// Retire gives up every body but the newest. Reading them fails.
	Retire()

	// Whole reports whether the body was read to its end and can be sent again.
	Whole() bool

	// End declares that no more attempts follow. Running ones continue.
	End()

	// Close gives up every body, and closes the source. It is for a request
	// that was sent and then rejected, because no service closes its body.
	Close() error
}

// WithReplayer sets the Replayer of a protocol.
func WithReplayer[Req, Rsp any](r Replayer[Req, Rsp]) Option[Rsp] {
	check(r != nil, "WithReplayer: nil Replayer")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.resend = r })
}

// replayerOf is the Replayer that the options name, or the default: see [Replayer].
func replayerOf[Req, Rsp any](o options[Rsp]) Replayer[Req, Rsp] {
	if given, ok := o.resend.(Replayer[Req, Rsp]); ok {
		return given
	}
	r := fieldReplayer[Req, Rsp]{method: -1, getBody: -1, requests: seamOf[Req](), responses: seamOf[Rsp]()}
	t := reflect.TypeFor[Req]()
	if r.requests.has {
		r.getBody = fieldOf(t.Elem(), "GetBody", func(f reflect.Type) bool { return f == reflect.TypeFor[func() (io.ReadCloser, error)]() })
	}
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		r.method = fieldOf(t.Elem(), "Method", func(f reflect.Type) bool { return f.Kind() == reflect.String })
	}
	return r
}

func fieldOf(t reflect.Type, name string, is func(reflect.Type) bool) int {
	f, ok := t.FieldByName(name)
	if !ok || len(f.Index) != 1 || !is(f.Type) {
		return -1
	}
	return f.Index[0]
}

// fieldReplayer is the default Resend. It knows its messages by the names of their
// fields, looked up once; -1 is a field that is not there.
type fieldReplayer[Req, Rsp any] struct {
	method, getBody int
	requests        bodySeam[Req]
	responses       bodySeam[Rsp]
}

// Idempotent goes by the method, where requests have one: RFC 9110, section
// 9.2.2. What has none may always be sent again.
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

// Replay uses GetBody of the request, if any, or keeps the bytes read. Every
// attempt gets a shallow copy of the request, so services must not write to its
// maps and slices.
func (r fieldReplayer[Req, Rsp]) Replay(req Req, limit int64) Replay[Req] {
	body := r.requests.body(req)
	if body == nil {
		return nil
	}
	if r.getBody >= 0 {
		field := reflect.ValueOf(req).Elem().Field(r.getBody)
		if get, _ := reflect.TypeAssert[func() (io.ReadCloser, error)](field); get != nil {
			return &getBodyReplay[Req]{req: req, body: r.requests.index, getBody: r.getBody, get: get, last: body}
		}
	}
	again := &keptReplay[Req]{req: req, field: r.requests.index}
	again.init(body, limit)
	return again
}

// RetryAfter returns that of the error.
func (r fieldReplayer[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return RetryAfter(err)
}

// What Discard reads of a body, and for how long, before it closes it. A
// connection is worth a few packets, and no more of the caller's time.
const (
	discardBytes = 8 << 10
	discardTime  = 50 * time.Millisecond
)

func (r fieldReplayer[Req, Rsp]) Drain(rsp Rsp) {
	if body := r.responses.body(rsp); body != nil {
		DrainBody(body)
	}
}

// DrainBody discards a response body: it reads up to 8 KiB for up to 50 ms, so
// that the connection can be used again, and closes it. It is for Drain of a
// [Replayer]. The body may be closed concurrently.
func DrainBody(body io.ReadCloser) {
	closed := sync.OnceFunc(func() { body.Close() }) // which panics again, here, if it did in the timer
	late := time.AfterFunc(discardTime, func() { _ = panics.Contain(closed) })
	defer late.Stop()
	defer closed()
	// One byte more than the limit, because a read at the limit does not see the end.
	io.CopyN(io.Discard, body, discardBytes+1) //nolint:errcheck // the body is discarded
}

// keptReplay is the Replay of a request that has but one body.
type keptReplay[Req any] struct {
	BodyReplay
	req   Req
	field int
}

func (k *keptReplay[Req]) Next() (Req, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return k.req, false
	}
	return withBody(k.req, k.field, body), true
}

// getBodyReplay is the Replay of a request with GetBody. The first attempt
// sends it unchanged. The copies have no GetBody, so that no service below
// sends them again.
type getBodyReplay[Req any] struct {
	req           Req
	body, getBody int // the fields
	get           func() (io.ReadCloser, error)

	mu     sync.Mutex
	sent   bool
	last   io.ReadCloser // of the newest try
	before io.ReadCloser // of the one before; nil if that was closed, or there was none
}

func (g *getBodyReplay[Req]) Next() (Req, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.sent {
		g.sent = true
		return g.req, true
	}
	body, err := g.get()
	if err != nil {
		return g.req, false
	}
	g.before, g.last = g.last, body
	again := withBody(g.req, g.body, body)
	reflect.ValueOf(again).Elem().Field(g.getBody).SetZero()
	return again, true
}

// Retire closes the body of the try before the newest, which may not have taken
// it. See BodyReplay.Retire.
func (g *getBodyReplay[Req]) Retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.before != nil {
		_ = g.before.Close()
		g.before = nil
	}
}

// Close closes the body that the last try did not take. See BodyReplay.Close.
func (g *getBodyReplay[Req]) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.Close()
}

func (g *getBodyReplay[Req]) End() {}

func (g *getBodyReplay[Req]) Whole() bool { return true }

// withBody returns a shallow copy of req with another body.
func withBody[Req any](req Req, field int, body io.ReadCloser) Req {
	again := reflect.New(reflect.TypeFor[Req]().Elem())
	again.Elem().Set(reflect.ValueOf(req).Elem())
	again.Elem().Field(field).Set(reflect.ValueOf(body))
	copied, _ := reflect.TypeAssert[Req](again)
	return copied
}
