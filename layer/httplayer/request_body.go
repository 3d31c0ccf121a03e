package httplayer

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// repeatLimit is how many bytes of a request body an Endpoint keeps until the response arrives,
// in case the server has not processed the request. A Retry keeps as many.
const repeatLimit = 64 << 10

// requestBody is the body of a request that an Endpoint or a RoundTripperLayer sends, possibly several
// times. Each attempt reads it through its own attemptBody. From begin until the request is settled,
// that is, until it has a response or has failed, a requestBody keeps the bytes that were read, and
// closing it has no effect, because the request may be sent again or rejected. At other times, it only
// forwards Read and Close.
//
// A body that lendBody has made can be used by several Endpoints one after the other: an Endpoint that
// rejects the request gives the body back with handBack.
type requestBody struct {
	source    io.ReadCloser
	getBody   func() (io.ReadCloser, error) // GetBody of the request, used instead of kept bytes; may be nil
	limit     int
	trailer   *http.Header // the trailers of the request, which may arrive with the end of the source
	announced []string     // names of the announced trailers
	outer     attemptBody  // what the layers above the Endpoint read and close; its body is nil without lendBody
	first     attemptBody  // avoids an allocation

	mu       sync.Mutex
	moved    sync.Cond    // signals that a Read of the source has returned, or a change of current
	current  *attemptBody // the attempt that may read, or outer; nil after a failure or a rejection
	kept     keptBytes
	touched  bool  // an attempt has called Read since begin, so the source may no longer be at its beginning
	full     bool  // more than limit bytes were read, so that the kept bytes are not enough to send the request again
	fetching bool  // a Read of the source is in progress
	sources  int   // number of times that the source was replaced
	awaited  bool  // fetching was true at the first Close
	settled  bool  // no Endpoint has the body, or it has returned a response or an error
	closed   bool  // the source was closed
	err      error // error with which the source has ended
	broken   error // err, unless it is io.EOF or came after Close
}

// newRequestBody returns the body of req, of which up to limit bytes are kept for another attempt. With
// GetBody, nothing is kept, because the request can make the body again.
func newRequestBody(req *http.Request, limit int) *requestBody {
	b := &requestBody{source: req.Body, getBody: req.GetBody, limit: limit, trailer: &req.Trailer, settled: true}
	if b.getBody != nil {
		b.limit = 0
	}
	if len(req.Trailer) > 0 {
		b.announced = slices.Collect(maps.Keys(req.Trailer))
	}
	b.moved.L = &b.mu
	// Until an Endpoint begins to send the request, the layers above may read the body.
	b.current = &b.outer
	return b
}

// lendBody replaces req's body with one that can be "lent" to several Endpoints, one after the other.
// If an Endpoint has read a part of it and then rejects the request, the next one can read it from the
// beginning. This works as long as at most repeatLimit bytes were read, or if req has GetBody.
func lendBody(req *http.Request) {
	if hasBody(req) {
		b := newRequestBody(req, repeatLimit)
		b.outer.body = b
		req.Body = &b.outer
	}
}

// lentBody returns req's body if lendBody has made it, and otherwise nil.
func lentBody(req *http.Request) *requestBody {
	if a, ok := req.Body.(*attemptBody); ok && a == &a.body.outer {
		return a.body
	}
	return nil
}

// begin lends the body to an Endpoint, and returns it as its first attempt reads it. limits holds the
// time limits of the response, which are paused during reads. If the body was used before and not given
// back, its Read fails.
func (b *requestBody) begin(limits *reqctx.Context) *attemptBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &b.first
	// A connection of an earlier Endpoint may still hold the first attempt, so it is not used again.
	if a.body != nil {
		a = new(attemptBody)
	}
	a.body, a.limits = b, limits
	if b.current == &b.outer && !b.outer.closed {
		b.current, b.settled, b.touched, b.awaited = a, false, false, false
		b.full = b.full || b.kept.unread < b.kept.n // a layer has read a part
	}
	return a
}

// attemptBody is the body of one attempt to send a request. Its field closed is guarded by the
// requestBody's mutex.
type attemptBody struct {
	body   *requestBody
	limits *reqctx.Context // time limits of the response, which Read pauses
	closed bool            // the attempt reads no more
}

// Read returns kept bytes first, if an earlier attempt has read some, and then reads from the source.
// If the Read of an earlier attempt is still in progress, this one waits for it and gets its bytes.
func (a *attemptBody) Read(p []byte) (n int, err error) {
	b := a.body
	b.mu.Lock()
	// Only one Read of the source may be in progress at a time.
	if b.fetching {
		a.limits.Pause() // the time in which the client sends nothing does not count
		for b.fetching && a.reads() && b.kept.unread == 0 {
			b.moved.Wait()
		}
		a.limits.Resume()
	}
	// From here on the body cannot be handed back or sent again without the kept bytes or GetBody.
	b.touched = b.touched || a.reads()
	switch {
	case !a.reads():
		err = http.ErrBodyReadAfterClose
	case b.kept.unread > 0:
		// The error of the source belongs after the last kept byte.
		if n = b.kept.read(p); b.kept.unread == 0 {
			err = b.err
		}
		b.trim()
	case b.err != nil:
		err = b.err
	default:
		return a.fetch(p) // which unlocks b.mu
	}
	b.mu.Unlock()
	return n, err
}

// reads reports whether a is the current attempt and open. The caller holds the mutex.
func (a *attemptBody) reads() bool { return a.body.current == a && !a.closed }

// fetch reads from the source into p, with the mutex unlocked. The caller, Read, has locked the mutex and must not
// unlock it: fetch does so, and returns with the mutex unlocked.
func (a *attemptBody) fetch(p []byte) (n int, err error) {
	b := a.body
	// The number tells later whether reopen has replaced the source during the Read.
	source, number := b.source, b.sources
	b.fetching = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		// Otherwise reopen has replaced the source, and what the old one has returned is not needed.
		if b.sources == number {
			b.fetching = false
			b.store(a, p[:n], err)
		}
		b.mu.Unlock()
		b.moved.Broadcast()
	}()
	defer panics.Recover(&err)
	a.limits.Pause()
	defer a.limits.Resume()
	return source.Read(p)
}

// store handles p and err, which the attempt a has read from the source: it keeps p as long as the
// request may be sent again. The caller holds the mutex.
func (b *requestBody) store(a *attemptBody, p []byte, err error) {
	if b.err = err; err != nil && err != io.EOF && !a.closed { //nolint:errorlint // a Reader returns exactly this value
		b.broken = err
	}
	switch {
	// Nothing reads the body any more, so p is dropped.
	case b.current == nil || b.closed:
	case b.current != a: // the next attempt has begun
		b.kept.write(p)
		b.kept.unread += len(p)
	case b.settled || b.full: // nothing to keep
	case b.kept.n+len(p) > b.limit:
		b.full = true
		b.kept.release()
	default:
		b.kept.write(p)
	}
}

// trim releases the kept bytes if no attempt needs them any more. The caller holds the mutex.
func (b *requestBody) trim() {
	if b.current == nil || b.settled && b.kept.unread == 0 {
		b.kept.release()
	}
}

// Close implements [io.Closer]. It closes the source only if the request cannot be sent again.
// Otherwise the next attempt needs it.
func (a *attemptBody) Close() error {
	b := a.body
	b.mu.Lock()
	if !a.reads() {
		b.mu.Unlock()
		return nil
	}
	a.closed = true
	// A Read in progress shows that the attempt was waiting for the client.
	b.awaited = b.awaited || b.fetching
	b.moved.Broadcast()
	return b.unlockAndClose()
}

// unlockAndClose unlocks the mutex, which the caller has locked, and closes the source if no attempt reads it and none
// can follow. The source is closed without the mutex, because Close may block.
func (b *requestBody) unlockAndClose() (err error) {
	// It ends if no further attempt can follow (settled or full) and no current one reads it.
	ends := !b.closed && (b.settled || b.full) && (b.current == nil || b.current.closed)
	if ends {
		b.closed = true
		b.kept.release()
	}
	source := b.source // which may be replaced
	b.mu.Unlock()
	if !ends {
		return nil
	}
	defer panics.Recover(&err)
	return source.Close()
}

// Pending returns the number of bytes that Read can return without waiting. If eof is true,
// the body ends after these bytes.
func (a *attemptBody) Pending() (n int, eof bool) {
	b := a.body
	b.mu.Lock()
	switch {
	case !a.reads():
	case b.kept.unread > 0 || b.err != nil:
		n, eof = b.kept.unread, b.err == io.EOF //nolint:errorlint // a Reader returns exactly this value
	// The source is asked without the mutex, which it may lock itself.
	case !b.fetching:
		source := b.source
		b.mu.Unlock()
		return message.Pending(source)
	}
	b.mu.Unlock()
	return n, eof
}

// Arrive waits until bytes have arrived for a received body.
func (a *attemptBody) Arrive() bool { return message.Arrive(a.body.currentSource()) }

// Proceed sends 100 Continue to a client that waits for it.
func (a *attemptBody) Proceed() { message.Proceed(a.body.currentSource()) }

// currentSource returns the source, which reopen may replace.
func (b *requestBody) currentSource() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.source
}

// Moved restarts the response's time limits, because the server has accepted bytes.
func (a *attemptBody) Moved() {
	a.limits.Pause()
	a.limits.Resume()
}

// admit is called when the request has a response, so that it is not sent again. The kept bytes are
// released. The source is closed if the attempt has closed its body already.
func (b *requestBody) admit() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.settled = true
	b.trim()
	_ = b.unlockAndClose()
}

// handBack gives the body back to the caller of an Endpoint that rejects the request. It returns false
// if that is impossible, because the body was read and cannot be read again; then the request must
// fail. From now on, attempts cannot read the body, even if a goroutine of a connection still tries to.
// A nil body can always be given back.
func (b *requestBody) handBack() bool {
	switch {
	case b == nil:
		return true
	// A lent body starts anew for the next Endpoint.
	case b.outer.body != nil:
		return b.restart(&b.outer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Otherwise the caller reads the original body, which must not have lost any bytes.
	if b.touched {
		return false
	}
	b.current, b.closed, b.settled = nil, true, true
	return true
}

// again returns a copy of out for another attempt, which reads the body from its beginning. Earlier
// attempts can no longer read. ok is false if the body cannot be read again, because it is too long to
// be kept and has no GetBody, or because reading it has failed.
func (b *requestBody) again(out *http.Request, limits *reqctx.Context) (next *http.Request, ok bool) {
	if b == nil {
		return out, true
	}
	a := &attemptBody{body: b, limits: limits}
	if !b.restart(a) {
		return nil, false
	}
	next = out.WithContext(out.Context())
	next.Body = a
	if *b.trailer == nil {
		return next, true
	}
	next.Trailer = make(http.Header, len(b.announced)) // a Read of the earlier attempt may write to the shared map
	for _, name := range b.announced {
		next.Trailer[name] = nil
	}
	next.Body = &trailerFilter{wrappedBody: wrappedBody{a}, received: b.trailer, forwarded: &next.Trailer}
	return next, true
}

// restart makes next the current reader, which begins where the first attempt began. It returns false
// if the body cannot be read again; see again.
func (b *requestBody) restart(next *attemptBody) bool {
	b.mu.Lock()
	switch {
	case !b.touched: // nothing was read, so the source is at its beginning
	case b.broken != nil || b.full && b.getBody == nil:
		b.mu.Unlock()
		return false
	case b.full:
		b.current = nil // no attempt may read while the source is replaced
		b.mu.Unlock()
		if !b.reopen() {
			return false
		}
		b.mu.Lock()
	default:
		b.kept.rewind()
	}
	b.current, b.settled = next, next == &b.outer
	b.trim()
	b.mu.Unlock()
	b.moved.Broadcast()
	return true
}

// reopen replaces the source with a new one from GetBody, closes the old one, and drops the kept bytes.
// A Read of the old source may still be in progress; what it returns is ignored. reopen returns false if
// GetBody fails. The caller must not hold the mutex, because GetBody and Close may block.
func (b *requestBody) reopen() bool {
	source, err := b.getBody()
	if err != nil {
		return false
	}
	b.mu.Lock()
	old, closed := b.source, b.closed // closed: whether old was closed already
	b.source, b.sources = source, b.sources+1
	b.fetching, b.full, b.closed, b.err = false, false, false, nil
	b.kept.release()
	b.mu.Unlock()
	if !closed {
		_ = panics.Contain(func() { _ = old.Close() })
	}
	return true
}

// abandon is called when the request has failed. No attempt can read the body any more, and it is
// closed. broken is the error with which reading has failed, or nil. awaited is true if a Read was in
// progress at the end, so that the client may be to blame.
func (b *requestBody) abandon() (broken error, awaited bool) { //nolint:revive // broken is a result, not a failure of abandon
	if b == nil {
		return nil, false
	}
	b.mu.Lock()
	if b.current != nil && !b.current.closed {
		b.awaited = b.awaited || b.fetching
	}
	b.current, b.settled = nil, true
	b.trim()
	broken, awaited = b.broken, b.awaited
	b.moved.Broadcast()
	_ = b.unlockAndClose()
	return broken, awaited
}

// fail closes the body after req has failed otherwise than by a rejection. It returns the error
// to report for err:
//
//   - If ctx has ended, it returns ctx's cause. If the body was being read and
//     isStream returns false, a bodyError wraps the cause.
//   - Otherwise, if reading the body failed, it returns that error, wrapped in a bodyError.
//   - It returns a [message.RequestError] unchanged.
//   - It returns any other err, wrapped in a peerError.
func (b *requestBody) fail(ctx context.Context, req *http.Request, err error) error {
	broken, awaited := b.abandon()
	invalid, isInvalid := errors.AsType[*message.RequestError](err)
	switch {
	case ctx.Err() != nil && awaited && !isStream(req):
		return &bodyError{"was awaited", causeOf(ctx, req)}
	case ctx.Err() != nil:
		return causeOf(ctx, req)
	case broken != nil:
		return &bodyError{"broke off", broken}
	case isInvalid:
		return invalid
	}
	return &peerError{err}
}

// keptBytes holds bytes of a body that may be needed again, in a list of buffers, and a position up to
// which they were read again.
type keptBytes struct {
	first, last *message.Buffer
	n           int // bytes in the list
	unread      int // bytes after the position

	at  *message.Buffer // buffer of the position; nil before the first read
	off int             // offset of the position in at
}

// write adds p to the end. It does not count p as unread, because the attempt that has read it returns
// it.
func (k *keptBytes) write(p []byte) {
	k.n += len(p)
	for len(p) > 0 {
		if k.last == nil || len(k.last.B) == cap(k.last.B) {
			b := message.GetBuffer(min(len(p), repeatLimit))
			if k.last == nil {
				k.first = b
			} else {
				k.last.Next = b
			}
			k.last = b
		}
		n := min(len(p), cap(k.last.B)-len(k.last.B))
		k.last.B = append(k.last.B, p[:n]...)
		p = p[n:]
	}
}

// rewind sets the position to the beginning, so that another attempt reads all kept bytes again.
func (k *keptBytes) rewind() { k.at, k.off, k.unread = nil, 0, k.n }

// read copies the next kept bytes that this attempt has not read to p.
func (k *keptBytes) read(p []byte) (n int) {
	if k.at == nil {
		k.at = k.first
	}
	for n < len(p) && k.unread > 0 {
		if k.off == len(k.at.B) {
			k.at, k.off = k.at.Next, 0
		}
		c := copy(p[n:], k.at.B[k.off:])
		n += c
		k.off += c
		k.unread -= c
	}
	return n
}

// release drops all kept bytes and returns their buffers to the pool.
func (k *keptBytes) release() {
	for b := k.first; b != nil; {
		next := b.Next
		b.Release()
		b = next
	}
	*k = keptBytes{}
}
