package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// MirrorPolicy configures a [Mirror]. Zero fields use their defaults.
type MirrorPolicy[Req any] struct {
	// Target is the name of the service that receives the copies. It is only shown by
	// [Describe].
	Target string

	// Match reports whether a request may be copied. By default every request may. It must
	// be safe for concurrent use and must not modify its argument.
	Match func(Req) bool

	// Fraction is the share of the requests selected by Match that is copied: above 0, at
	// most 1. The default is 1.
	Fraction float64

	// MaxBodyBytes is the size of the largest request body that is stored for the copy:
	// default 64 KiB. Requests with larger bodies are not copied. If the value is negative,
	// only requests without a body are copied.
	MaxBodyBytes int64

	// MaxInFlight is the largest number of copies in flight. While that many are in flight,
	// requests are not copied. The default is 100.
	MaxInFlight int

	// Timeout limits the time of a copy, its response included. The default is 10 s.
	Timeout time.Duration

	// Rewrite returns the request to send in place of the copy, for example with other headers.
	// It runs on the copy's goroutine and may modify its argument. If Rewrite is nil, the copy is
	// sent unchanged.
	Rewrite func(copied Req) Req

	// Rand returns a random number, at least 0 and below 1. The default is [rand.Float64].
	// It must be safe for concurrent use.
	Rand func() float64
}

// The defaults of a MirrorPolicy.
const (
	defaultMirrorBody     = 64 << 10
	defaultMirrorInFlight = 100
	defaultMirrorTimeout  = 10 * time.Second
)

// Validate returns an error that names the first field that is out of range, or nil.
func (p MirrorPolicy[Req]) Validate() error {
	switch {
	// Written so that NaN is out of range too.
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("MirrorPolicy.Fraction is %v, must be 0 to 1", p.Fraction)
	case p.MaxInFlight < 0:
		return fmt.Errorf("MirrorPolicy.MaxInFlight is %d, must be at least 0", p.MaxInFlight)
	case p.Timeout < 0:
		return fmt.Errorf("MirrorPolicy.Timeout is %v, must be at least 0", p.Timeout)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields.
func (p MirrorPolicy[Req]) filled() MirrorPolicy[Req] {
	p.Fraction = cmp.Or(p.Fraction, 1)
	p.MaxBodyBytes = bodyLimit(p.MaxBodyBytes, defaultMirrorBody)
	p.MaxInFlight = cmp.Or(p.MaxInFlight, defaultMirrorInFlight)
	p.Timeout = cmp.Or(p.Timeout, defaultMirrorTimeout)
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	return p
}

// Mirror sends copies of requests to a second service, shadow, and discards their responses.
// Requests never wait for their copies and never fail because of them. For one copy per request,
// place Mirror above a [Retry] or [Hedge]; for one per attempt, place it below.
//
// Admission: every request is admitted. Ready is forwarded. A copy is sent when inner has returned
// and the request body was read to its end. Requests that inner rejects are not copied. A copy that
// the other service rejects is dropped.
//
// Cancellation: copies do not depend on the caller's context. They end with the Timeout of the
// policy or with ctx. Their context carries the caller's [Route] and [PriorityBulk].
//
// Body: the request body is stored while it is read, up to MaxBodyBytes. The [Protocol] discards a
// copy's response.
//
// Errors: errors of inner are returned unchanged. Errors and panics of the other service, the
// Editor and Rewrite are counted, and [Describe] shows the last one.
//
// Cost: without a copy, an atomic load and possibly a random number. With one, a copy of the
// headers and the body, and a goroutine. All services that the layer wraps share MaxInFlight.
func Mirror[Req, Rsp any](
	ctx context.Context, shadow Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req], opts ...Option[Rsp],
) Layer[Req, Rsp] {
	check(shadow != nil && edit != nil, "Mirror: nil service or Editor")
	checkPolicy(p)
	o := newOptions(opts)
	m := &mirrorShared[Req, Rsp]{
		lifetime: ctx, shadow: shadow, edit: edit, policy: p.filled(), protocol: protocolOf[Req](o), target: o.target,
	}
	m.answered.counter = o.instruments.Mirrored.With("outcome", "answered")
	m.failed.counter = o.instruments.Mirrored.With("outcome", "failed")
	m.rejected.counter = o.instruments.Mirrored.With("outcome", "rejected")
	m.full.counter = o.instruments.Mirrored.With("outcome", "full")
	m.skipped.counter = o.instruments.Mirrored.With("outcome", "skipped")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mirror[Req, Rsp]{wrapper[Req, Rsp]{next}, m}
	}
}

// Mirror adds a [Mirror] layer, which sends copies of requests to another service.
func (s Stack[Req, Rsp]) Mirror(
	ctx context.Context, shadow Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req],
) Stack[Req, Rsp] {
	return s.With("mirror", Mirror(ctx, shadow, edit, p, s.opts...))
}

// mirror is the service of [Mirror].
type mirror[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	*mirrorShared[Req, Rsp]
}

// Call sends req and, if it is selected, a copy of it to the mirror, whose response is dropped. A
// rejected request is not mirrored.
func (m *mirror[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if !m.selects(req) {
		return m.Service.Call(ctx, req)
	}
	c := &mirrored[Req, Rsp]{mirrorShared: m.mirrorShared, route: RouteFromContext(ctx)}
	forked, ok := m.fork(req, c)
	if !ok {
		return m.Service.Call(ctx, req)
	}
	// A rejected request was not sent, so it is not copied either: the condition is never met.
	rsp, err := m.Service.Call(ctx, forked)
	if err == nil || !errors.Is(err, ErrNotReady) {
		c.conditionMet()
	}
	return rsp, err
}

// mirrorShared is the state that all services to which one [Mirror] is applied share.
type mirrorShared[Req, Rsp any] struct {
	lifetime context.Context //nolint:containedctx // the constructor's; copies end with it
	shadow   Service[Req, Rsp]
	edit     Editor[Req, Rsp]
	policy   MirrorPolicy[Req]
	protocol Protocol[Req, Rsp]
	target   string

	inFlight                                  atomic.Int64
	answered, failed, rejected, full, skipped tally                  // outcomes of copies; full: too many in flight; skipped: not copied
	last                                      atomic.Pointer[string] // the last error, or nil
}

// fork returns the request to send to inner instead of req: one whose body the Editor stores while
// inner reads it, and passes to c.bodyRead at its end. If the Editor panics, fork returns false, and
// the caller sends req itself, because a mirror must not make requests fail.
func (m *mirrorShared[Req, Rsp]) fork(req Req, c *mirrored[Req, Rsp]) (forked Req, ok bool) {
	defer func() {
		// TeeRequest has panicked, because it has not returned.
		if !ok {
			m.skip(recover())
		}
	}()
	return m.edit.TeeRequest(req, m.policy.MaxBodyBytes, c.bodyRead), true
}

// Describe returns a node with the number of copies for each outcome. The node's child is the
// service that receives the copies.
func (m *mirror[Req, Rsp]) Describe() Node {
	n := Node{Name: "mirror", State: State{
		{"share", m.policy.Fraction}, {"in_flight", m.inFlight.Load()}, {"answered", m.answered.n.Load()},
		{"failed", m.failed.n.Load()}, {"rejected", m.rejected.n.Load()}, {"full", m.full.n.Load()},
		{"skipped", m.skipped.n.Load()},
	}}
	if last := m.last.Load(); last != nil {
		n.State = append(n.State, Attr{"last_error", *last})
	}
	node := Node{Name: "to", Next: new(Describe(m.shadow))}
	if m.policy.Target != "" {
		node.State = State{{"target", m.policy.Target}}
	}
	n.Children = []Node{node}
	return n
}

// selects reports whether to copy req: Match accepts it, a random number is below the policy's
// Fraction, and fewer than MaxInFlight copies are in flight.
func (m *mirrorShared[Req, Rsp]) selects(req Req) bool {
	// After the layer's lifetime, nothing is mirrored.
	if m.lifetime.Err() != nil || m.policy.Match != nil && !m.policy.Match(req) {
		return false
	}
	// After Match, so that Fraction is the share of the requests that match.
	if m.policy.Fraction < 1 && m.policy.Rand() >= m.policy.Fraction {
		return false
	}
	// The last check: only a request that would have been mirrored counts as one too many.
	if m.inFlight.Load() >= int64(m.policy.MaxInFlight) {
		m.full.inc()
		return false
	}
	return true
}

// skip counts a request that cannot be copied, because its body was not stored or the Editor panicked.
// panicked is the panic value, or nil.
func (m *mirrorShared[Req, Rsp]) skip(panicked any) {
	m.skipped.inc()
	if panicked != nil {
		m.recordError(fmt.Errorf("panic: %v", panicked))
	}
}

// recordError stores err as the last error of a mirrored request, for Describe.
func (m *mirrorShared[Req, Rsp]) recordError(err error) { m.last.Store(new(err.Error())) }

// mirrored is a request that was selected to be copied. The copy is sent when two conditions hold:
// inner has returned without a rejection, and the request body was read to its end.
type mirrored[Req, Rsp any] struct {
	*mirrorShared[Req, Rsp]
	route  *Route
	copied Req
	met    atomic.Int32 // number of conditions that hold
}

// bodyRead is the function done of [Editor.TeeRequest]: the request body has ended. If ok is true,
// copied is a complete copy. Otherwise the request cannot be copied.
func (c *mirrored[Req, Rsp]) bodyRead(copied Req, ok bool) {
	if !ok {
		c.skip(nil)
		return
	}
	c.copied = copied
	c.conditionMet()
}

// conditionMet counts one of the two conditions. The second call starts the goroutine that sends the
// copy, unless too many copies are in flight.
func (c *mirrored[Req, Rsp]) conditionMet() {
	// Only the call that meets the second condition continues.
	if c.met.Add(1) != 2 || c.lifetime.Err() != nil {
		return
	}
	// selects has checked this before, but other copies may have begun since then.
	if c.inFlight.Add(1) > int64(c.policy.MaxInFlight) {
		c.inFlight.Add(-1)
		c.full.inc()
		return
	}
	go c.send()
}

// send sends the copy and counts its outcome. It is the function of a goroutine.
func (c *mirrored[Req, Rsp]) send() {
	// The outcome stays "failed" if deliver panics.
	outcome := &c.failed
	defer func() {
		c.inFlight.Add(-1)
		_ = panics.Contain(outcome.inc)
	}()
	if err := panics.Contain(func() { outcome = c.deliver() }); err != nil {
		c.recordError(err)
	}
}

// deliver sends the copy and discards the response. It returns the tally for the outcome.
func (c *mirrored[Req, Rsp]) deliver() (outcome *tally) {
	ctx, cancel := context.WithTimeoutCause(c.lifetime, c.policy.Timeout, &Error{
		Layer: "mirror", Target: c.target, Reason: "a copy took too long", Waited: c.policy.Timeout, Kind: ErrTimeout,
	})
	defer cancel()
	// Copies are the first requests that an overloaded service may reject.
	ctx = WithPriority(ctx, PriorityBulk)
	if c.route != nil {
		ctx = WithRoute(ctx, c.route)
	}
	req := c.copied
	if c.policy.Rewrite != nil {
		req = c.policy.Rewrite(req)
	}
	rsp, err := c.shadow.Call(ctx, req)
	switch {
	case err == nil:
		c.protocol.Drain(rsp)
		return &c.answered
	case errors.Is(err, ErrNotReady):
		c.recordError(err)
		return &c.rejected
	default:
		c.recordError(err)
		return &c.failed
	}
}

// TeeBody returns a body that stores up to limit bytes as they are read from body. It is typically
// used in an [Editor]'s TeeRequest. The new body calls done once, on the goroutine that calls Read
// or Close. done receives the whole body and true if the body was read to its end. It may retain
// this slice. If the body is larger than limit, a Read failed, or the body was closed early, ok is
// false.
//
// size is the body's declared length, or negative if it is unknown. A body is complete when size
// bytes were read, even if Read has not returned io.EOF yet. If it turns out longer or shorter, it
// is incomplete.
//
// Read and Close may be called concurrently. done is not called if the body is neither read to its
// end nor closed.
func TeeBody(body io.ReadCloser, size, limit int64, done func(data []byte, ok bool)) io.ReadCloser {
	return &teeBody{source: body, size: size, limit: max(limit, 0), done: done}
}

// teeBody is the body that [TeeBody] returns.
type teeBody struct {
	source      io.ReadCloser
	size, limit int64

	mu   sync.Mutex
	data []byte
	done func(data []byte, ok bool) // nil after it was called
}

// Read reads from the body for the request itself, and passes the same bytes to the copy.
func (f *teeBody) Read(p []byte) (int, error) {
	n, err := f.source.Read(p)
	if n >= 0 && n <= len(p) { // ignores a faulty reader
		f.take(p[:n], err)
	}
	return n, err
}

// take stores p, and calls end, with mu locked, if the body has ended with err or is too large.
func (f *teeBody) take(p []byte, err error) {
	f.mu.Lock()
	// done was called already, so nothing more is stored.
	if f.done == nil {
		f.mu.Unlock()
		return
	}
	fits := int64(len(p)) <= f.limit-int64(len(f.data))
	if fits {
		f.data = append(f.data, p...)
		if err == nil { // the body goes on
			f.mu.Unlock()
			return
		}
	}
	// end unlocks mu.
	f.end(fits && errors.Is(err, io.EOF) && (f.size < 0 || f.complete()))
}

// Close closes the body. If it was not read completely, there is no copy.
func (f *teeBody) Close() error {
	f.mu.Lock()
	if f.done == nil {
		f.mu.Unlock()
	} else {
		// A body of known length may be complete although Read has not returned io.EOF. end unlocks mu.
		f.end(f.complete())
	}
	return f.source.Close()
}

// complete reports whether exactly the declared number of bytes was read. The caller must
// hold mu.
func (f *teeBody) complete() bool { return int64(len(f.data)) == f.size }

// end calls done, with the stored bytes if ok is true, and otherwise with nil. The caller must have locked mu and
// must not unlock it: end does so before it calls done, because done is a function of the user.
func (f *teeBody) end(ok bool) {
	data := f.data
	done := f.done
	f.data, f.done = nil, nil
	f.mu.Unlock()
	// An incomplete body must not be sent.
	if !ok {
		data = nil
	}
	done(slices.Clip(data), ok)
}
