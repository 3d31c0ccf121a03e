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

// BodyReplay is a request body that can be sent several times. Protocol packages use it to
// implement [Replay]. Its methods and readers are safe for concurrent use.
//
// It stores the bytes that were read, up to the limit given to [ReplayBody]. Until the
// source has been read to its end, only the reader that Next returned last is valid. After
// that, all readers read the stored bytes.
type BodyReplay struct {
	source io.ReadCloser
	get    func() (io.ReadCloser, error) // returns another body for each attempt; nil if the bytes must be stored
	limit  int64

	mu       sync.Mutex
	moved    sync.Cond     // signals that the source returned bytes, or a reader was closed
	first    replayReader  // avoids an allocation
	current  *replayReader // the reader that Next returned last
	open     int           // number of open readers
	kept     []byte        // the bytes of the source from position base on
	base     int64
	full     bool  // Next returns false, because the limit was exceeded or End was called
	err      error // the error with which the source ended
	fetching bool  // a reader reads from the source
	ended    bool  // End was called
	closed   bool  // the source was closed
}

var (
	errReplayClosed = errors.New("read of a closed request body")
	errReplayOld    = errors.New("read of the request body of an earlier attempt")
	errReplayBroken = errors.New("reading the request body panicked")
)

// ReplayBody returns a BodyReplay with the argument body as its source, which it does not read yet.
// If the function get is not nil, it returns another copy of the body for each attempt after the
// first. If get is nil, the BodyReplay stores up to limit bytes of the source. If limit is then 0
// or less, the body can be sent again until its first byte was read.
//
// If get is not nil, the first attempt gets the source itself and closes it. If get is nil, the
// source is closed when End was called and all readers are closed. A rejected attempt does not
// close its reader. If the last attempt is rejected, the source therefore stays open until the
// caller closes it.
func ReplayBody(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) *BodyReplay {
	b := &BodyReplay{}
	b.init(body, get, limit)
	return b
}

func (b *BodyReplay) init(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) {
	b.source, b.get, b.limit = body, get, max(limit, 0)
	b.moved.L = &b.mu
}

// Next returns a reader for the next attempt, which reads the body from its beginning. The
// service to which the attempt is sent must close the reader. Next returns false if the
// body is larger than the limit, reading it failed, or End was called.
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

// Whole reports whether earlier readers stay valid after the next call of Next. It returns true if
// the body was read to its end and is stored completely. It also returns true if the function get
// was given to [ReplayBody], because each attempt then has its own body.
func (b *BodyReplay) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.get != nil || errors.Is(b.err, io.EOF) && !b.full
}

// End declares that no more attempts follow. Readers that are still open stay valid.
func (b *BodyReplay) End() {
	b.mu.Lock()
	b.ended, b.full = true, true
	b.trim()
	b.unlockAndClose()
}

// drop makes all later Reads of r return err. It does nothing if r was dropped before. The
// caller must hold mu.
func (b *BodyReplay) drop(r *replayReader, err error) {
	if r.err == nil {
		r.err = err
		b.open--
		b.moved.Broadcast()
	}
}

// trim releases the stored bytes if no reader needs them. The caller must hold mu.
func (b *BodyReplay) trim() {
	if end := b.base + int64(len(b.kept)); b.full && b.err == nil && b.current != nil && b.current.pos == end {
		b.kept, b.base = nil, end
	}
}

// unlockAndClose unlocks mu. If End was called and the last reader was closed, it also releases the
// stored bytes and closes the source.
func (b *BodyReplay) unlockAndClose() {
	last := b.ended && b.open == 0 && b.current != nil && b.get == nil && !b.closed
	if last {
		b.closed, b.kept = true, nil
	}
	b.mu.Unlock()
	if last {
		_ = b.source.Close()
	}
}

// replayReader is the body of one attempt. Its fields are guarded by the mutex of the
// BodyReplay.
type replayReader struct {
	body *BodyReplay
	pos  int64
	err  error // all Reads return it; nil while the reader is valid
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

// fetch reads from the source into p and stores the bytes. The caller must hold the mutex,
// which fetch unlocks while it reads.
func (r *replayReader) fetch(p []byte) (n int, err error) {
	b := r.body
	b.fetching = true
	b.mu.Unlock()
	err = errReplayBroken // in case the source panics
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

// take stores p and err, the results of a Read of the source for the reader r. If r was closed or
// replaced during the Read, later readers get the bytes in p. The caller must hold the mutex.
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

// Replayer has the functions that [Retry] and [Hedge] need for a protocol. The default
// Replayer supports requests and responses that are pointers to structs with a field Body
// of type [io.ReadCloser]. It sends requests of other types unchanged.
//
// A Replayer may also have a method Outline(rsp Rsp) string. It returns a short description
// of a response for an [Explanation].
type Replayer[Req, Rsp any] interface {
	// Idempotent reports whether sending req twice has the same effect as sending it once.
	Idempotent(req Req) bool

	// Replay prepares req for several attempts, for which it stores up to limit bytes of
	// the body. It does not read the body yet. It returns nil if req has no body and can be
	// sent unchanged.
	Replay(req Req, limit int64) Replay[Req]

	// RetryAfter returns the time to wait before another attempt, if rsp or err specifies
	// one. Otherwise it returns false. A negative time forbids another attempt.
	RetryAfter(rsp Rsp, err error) (time.Duration, bool)

	// Peek waits until it is known whether rsp is a failure. If trailers may report one, it
	// reads the first bytes of the body. It returns when ctx ends. whole is the response
	// with its whole body. ended reports whether the response has ended and has its
	// trailers. If ended is false, rsp must not be used any more. For a protocol without
	// trailers Peek returns rsp and false.
	Peek(ctx context.Context, rsp Rsp) (whole Rsp, ended bool)

	// Drain discards a response. If only a little of the body is left, Drain reads it, so
	// that the connection can be reused. It closes the body.
	Drain(rsp Rsp)
}

// Replay is one request that may be sent several times. Its methods are safe for concurrent
// use. If an attempt was not sent, the caller must close its body.
type Replay[Req any] interface {
	// Next returns the request for the next attempt, with a body that starts at its
	// beginning. It returns false if the body is larger than the limit or reading it
	// failed. Bodies of earlier attempts stay valid only if Whole returned true before.
	Next() (Req, bool)

	// Whole reports whether the body was read to its end and can be sent again.
	Whole() bool

	// End declares that no more attempts follow. Attempts in flight continue.
	End()
}

// WithReplayer sets the [Replayer] for the protocol of a stack, for example that of
// httplayer.
func WithReplayer[Req, Rsp any](r Replayer[Req, Rsp]) Option[Rsp] {
	check(r != nil, "WithReplayer: nil Replayer")
	return func(o *options[Rsp]) { o.replayer = r }
}

// replayerOf returns the [Replayer] that was set by [WithReplayer], or the default one.
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

// fieldReplayer is the default [Replayer]. It uses the fields Method, GetBody and Body of
// messages, which it finds by reflection. The index of a field that does not exist is -1.
type fieldReplayer[Req, Rsp any] struct {
	method, getBody int
	requests        bodyAccessor[Req]
	responses       bodyAccessor[Rsp]
}

// Idempotent reports whether the field Method of req is a method that is idempotent by RFC
// 9110, section 9.2.2. It returns true if the field does not exist or is empty.
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

// Replay returns a replay of req. Its attempts get their bodies from the function GetBody of req,
// or else from the stored bytes. Each attempt is a shallow copy of req without GetBody, so that a
// service below cannot send the request again.
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

// RetryAfter returns the result of the function [RetryAfter] for err. It ignores the response.
func (r fieldReplayer[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return RetryAfter(err)
}

// Peek returns rsp and false, because the default Replayer knows of no trailers.
func (r fieldReplayer[Req, Rsp]) Peek(_ context.Context, rsp Rsp) (Rsp, bool) { return rsp, false }

func (r fieldReplayer[Req, Rsp]) Drain(rsp Rsp) {
	if body := r.responses.body(rsp); body != nil {
		DrainBody(body)
	}
}

// fieldReplay is the [Replay] of a request with a body, for fieldReplayer.
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

// drainBytes and drainTime limit how much, and for how long, [DrainBody] reads.
const (
	drainBytes = 8 << 10
	drainTime  = 50 * time.Millisecond
)

// DrainBody implements the method Drain of a [Replayer]. It reads up to 8 KiB of a response
// body for up to 50 ms, so that the connection can be reused. Then it closes the body. The
// body may be closed concurrently.
func DrainBody(body io.ReadCloser) {
	closed := sync.OnceFunc(func() { body.Close() }) // repeats a panic of the timer's call here
	late := time.AfterFunc(drainTime, func() { _ = panics.Contain(closed) })
	defer late.Stop()
	defer closed()
	// The limit has one byte more, because a read of exactly drainBytes does not see the end.
	io.CopyN(io.Discard, body, drainBytes+1) //nolint:errcheck // the body is discarded
}
