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

// MirrorPolicy configures a [Mirror]. Zero fields have their defaults.
type MirrorPolicy[Req any] struct {
	// Target names the destination of the copies, for people.
	Target string

	// Match selects requests. It must be safe for concurrent use and must not
	// change them. The default selects all.
	Match func(Req) bool

	// Fraction of the selected requests, above 0 to 1. The default is 1.
	Fraction float64

	// MaxBodyBytes is the part of a request body that is kept for the copy:
	// default 64 KiB. Requests with larger bodies are not copied. With a
	// negative value only requests without a body are copied.
	MaxBodyBytes int64

	// MaxInFlight limits the copies in flight; further ones are dropped. The
	// default is 100.
	MaxInFlight int

	// Timeout limits a copy, its response included. The default is 10 s.
	Timeout time.Duration

	// Rewrite changes a copy before it is sent, for example its headers. It
	// runs on the goroutine of the copy and may modify its argument.
	Rewrite func(copied Req) Req

	// Rand returns numbers from 0 to below 1 and must be safe for concurrent
	// use. The default is [rand.Float64].
	Rand func() float64
}

const (
	defaultMirrorBody     = 64 << 10
	defaultMirrorInFlight = 100
	defaultMirrorTimeout  = 10 * time.Second
)

// Validate returns an error that names the field that is out of range.
func (p MirrorPolicy[Req]) Validate() error {
	switch {
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("MirrorPolicy.Fraction is %v, must be 0 to 1", p.Fraction)
	case p.MaxInFlight < 0:
		return fmt.Errorf("MirrorPolicy.MaxInFlight is %d, must be at least 0", p.MaxInFlight)
	case p.Timeout < 0:
		return fmt.Errorf("MirrorPolicy.Timeout is %v, must be at least 0", p.Timeout)
	}
	return nil
}

// filled returns p with defaults in place of zero fields.
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

// Mirror sends copies of requests to another service and drops its responses,
// for example to test a new version with real traffic. The original requests
// never wait for their copies and never fail because of them.
//
// A copy is sent after inner has returned and the request body was read to its
// end. Rejected requests have no copy, because they may be served elsewhere.
// Place it above a [Retry] or [Hedge] for one copy per request, and below for
// one per attempt.
//
// Admission: none of its own; Ready is forwarded. Ready of the destination is
// not called, and a copy that it rejects is dropped.
//
// Cancellation: copies do not depend on the caller's context. They end with the
// policy's Timeout or with ctx. They have the caller's [Route] and
// [PriorityBulk].
//
// Body: the request body is kept while it is read, up to MaxBodyBytes. The
// response body of a copy is drained as the [Replayer] does, and closed.
//
// Errors: those of inner. Errors and panics of the destination, of the Editor
// and of Rewrite are counted and shown by [Describe].
//
// Cost: for requests without a copy an atomic load, and a random number if
// Fraction is below 1. For others a copy of the headers and the body, and a
// goroutine. MaxInFlight is shared by all services that the layer is applied
// to.
func Mirror[Req, Rsp any](
	ctx context.Context, to Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req], opts ...Option[Rsp],
) Layer[Req, Rsp] {
	check(to != nil && edit != nil, "Mirror: nil service or Editor")
	checkPolicy(p)
	o := newOptions(opts)
	m := &mirrorShared[Req, Rsp]{life: ctx, to: to, edit: edit, policy: p.filled(), replayer: replayerOf[Req](o), target: o.target}
	m.answered.to = o.to.Mirrored.With("outcome", "answered")
	m.failed.to = o.to.Mirrored.With("outcome", "failed")
	m.rejected.to = o.to.Mirrored.With("outcome", "rejected")
	m.full.to = o.to.Mirrored.With("outcome", "full")
	m.skipped.to = o.to.Mirrored.With("outcome", "skipped")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mirror[Req, Rsp]{next, m}
	}
}

type mirror[Req, Rsp any] struct {
	Service[Req, Rsp]
	*mirrorShared[Req, Rsp]
}

func (m *mirror[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if !m.wants(req) {
		return m.Service.Call(ctx, req)
	}
	c := &mirrored[Req, Rsp]{mirrorShared: m.mirrorShared, route: RouteFromContext(ctx)}
	forked, ok := m.fork(req, c)
	if !ok {
		return m.Service.Call(ctx, req)
	}
	rsp, err := m.Service.Call(ctx, forked)
	if err == nil || !errors.Is(err, ErrNotReady) {
		c.happened()
	}
	return rsp, err
}

// mirrorShared is shared by all services of a Mirror.
type mirrorShared[Req, Rsp any] struct {
	life     context.Context //nolint:containedctx // the constructor's: copies live as long as it does
	to       Service[Req, Rsp]
	edit     Editor[Req, Rsp]
	policy   MirrorPolicy[Req]
	replayer Replayer[Req, Rsp]
	target   string

	inFlight                                  atomic.Int64
	answered, failed, rejected, full, skipped tally
	last                                      atomic.Pointer[string] // the last error
}

// fork returns the request to send in place of req, or false without a copy. A
// panic does not fail the request.
func (m *mirrorShared[Req, Rsp]) fork(req Req, c *mirrored[Req, Rsp]) (forked Req, ok bool) {
	defer func() {
		if !ok {
			m.skip(recover())
		}
	}()
	return m.edit.TeeRequest(req, m.policy.MaxBodyBytes, c.whole), true
}

func (m *mirror[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

// Describe shows the outcomes of the copies and their destination.
func (m *mirror[Req, Rsp]) Describe() Node {
	n := Node{Name: "mirror", State: State{
		{"share", m.policy.Fraction}, {"in_flight", m.inFlight.Load()}, {"answered", m.answered.n.Load()},
		{"failed", m.failed.n.Load()}, {"rejected", m.rejected.n.Load()}, {"full", m.full.n.Load()},
		{"skipped", m.skipped.n.Load()},
	}}
	if last := m.last.Load(); last != nil {
		n.State = append(n.State, Attr{"last_error", *last})
	}
	to := Node{Name: "to", Next: new(Describe(m.to))}
	if m.policy.Target != "" {
		to.State = State{{"target", m.policy.Target}}
	}
	n.Children = []Node{to}
	return n
}

// wants decides whether a request is copied. Without room for a copy its body
// is not kept.
func (m *mirrorShared[Req, Rsp]) wants(req Req) bool {
	if m.life.Err() != nil || m.policy.Match != nil && !m.policy.Match(req) {
		return false
	}
	if m.policy.Fraction < 1 && m.policy.Rand() >= m.policy.Fraction {
		return false
	}
	if m.inFlight.Load() >= int64(m.policy.MaxInFlight) {
		m.full.inc()
		return false
	}
	return true
}

// skip counts a request without a copy.
func (m *mirrorShared[Req, Rsp]) skip(panicked any) {
	m.skipped.inc()
	if panicked != nil {
		m.note(fmt.Errorf("panic: %v", panicked))
	}
}

func (m *mirrorShared[Req, Rsp]) note(err error) { m.last.Store(new(err.Error())) }

// mirrored is one request that may be copied. The copy is sent after inner has not
// rejected the request and its body was read to the end.
type mirrored[Req, Rsp any] struct {
	*mirrorShared[Req, Rsp]
	route  *Route
	copied Req
	so     atomic.Int32 // conditions that hold
}

// whole is called by edit.TeeRequest, on the goroutine of the reader.
func (c *mirrored[Req, Rsp]) whole(copied Req, ok bool) {
	if !ok {
		c.skip(nil)
		return
	}
	c.copied = copied
	c.happened()
}

// happened sends the copy at the second call.
func (c *mirrored[Req, Rsp]) happened() {
	if c.so.Add(1) != 2 || c.life.Err() != nil {
		return
	}
	if c.inFlight.Add(1) > int64(c.policy.MaxInFlight) {
		c.inFlight.Add(-1)
		c.full.inc()
		return
	}
	go c.send()
}

// send sends a copy on its own goroutine, and counts its outcome.
func (c *mirrored[Req, Rsp]) send() {
	outcome := &c.failed
	defer func() {
		c.inFlight.Add(-1)
		_ = panics.Contain(outcome.inc)
	}()
	if err := panics.Contain(func() { outcome = c.deliver() }); err != nil {
		c.note(err)
	}
}

// deliver sends a copy, and returns the tally of its outcome.
func (c *mirrored[Req, Rsp]) deliver() (outcome *tally) {
	ctx, cancel := context.WithTimeoutCause(c.life, c.policy.Timeout, &Error{
		Layer: "mirror", Target: c.target, Reason: "a copy took too long", Waited: c.policy.Timeout, Kind: ErrTimeout,
	})
	defer cancel()
	ctx = WithPriority(ctx, PriorityBulk)
	if c.route != nil {
		ctx = WithRoute(ctx, c.route)
	}
	req := c.copied
	if c.policy.Rewrite != nil {
		req = c.policy.Rewrite(req)
	}
	rsp, err := c.to.Call(ctx, req)
	switch {
	case err == nil:
		c.replayer.Drain(rsp)
		return &c.answered
	case errors.Is(err, ErrNotReady):
		c.note(err)
		return &c.rejected
	default:
		c.note(err)
		return &c.failed
	}
}

// TeeBody returns body with a copy of the bytes read, for TeeRequest of an [Editor].
// It keeps up to limit bytes. It calls whole once, on the goroutine of Read or
// Close: with all bytes if the body was read to its end, or with false if it is
// larger than limit, failed, or was closed early. The bytes belong to whole.
//
// size is the declared length of the body, or less than 0. A body of another
// length is incomplete. A body that was read up to size and closed is complete.
//
// Read and Close may be called concurrently. A body that is neither read to its
// end nor closed does not call whole.
func TeeBody(body io.ReadCloser, size, limit int64, whole func(kept []byte, ok bool)) io.ReadCloser {
	return &teeBody{source: body, size: size, limit: max(limit, 0), whole: whole}
}

type teeBody struct {
	source      io.ReadCloser
	size, limit int64

	mu    sync.Mutex
	kept  []byte
	whole func(kept []byte, ok bool) // nil once it was called
}

func (f *teeBody) Read(p []byte) (int, error) {
	n, err := f.source.Read(p)
	if n >= 0 && n <= len(p) { // ignores a faulty reader
		f.take(p[:n], err)
	}
	return n, err
}

func (f *teeBody) take(p []byte, err error) {
	f.mu.Lock()
	if f.whole == nil {
		f.mu.Unlock()
		return
	}
	fits := int64(len(p)) <= f.limit-int64(len(f.kept))
	if fits {
		f.kept = append(f.kept, p...)
		if err == nil {
			f.mu.Unlock()
			return
		}
	}
	f.end(fits && errors.Is(err, io.EOF) && (f.size < 0 || f.complete()))
}

func (f *teeBody) Close() error {
	f.mu.Lock()
	if f.whole == nil {
		f.mu.Unlock()
	} else {
		f.end(f.complete())
	}
	return f.source.Close()
}

// complete reports whether all declared bytes were read. It is called with mu
// held.
func (f *teeBody) complete() bool { return int64(len(f.kept)) == f.size }

// end is called with mu held, and unlocks it.
func (f *teeBody) end(ok bool) {
	kept, whole := f.kept, f.whole
	f.kept, f.whole = nil, nil
	f.mu.Unlock()
	if !ok {
		kept = nil
	}
	whole(slices.Clip(kept), ok)
}
