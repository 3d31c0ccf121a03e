package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
)

// Protocols are the servers that [Detect] chooses from. Where HTTP1 or HTTP2 is
// nil, Opaque serves that protocol too; where Opaque is nil, what it would have
// to serve is reset.
type Protocols struct {
	HTTP1, HTTP2, Opaque Server
}

// Detect is the [Server] that looks at the first bytes of a client, and gives the
// connection to the server of their protocol, see [DetectProtocol]. It looks at the
// first line, up to 1 024 bytes and for up to 10 s ([WithDetectTimeout]). A line that
// has not ended then, and may be a request line, is HTTP/1. One that the client
// ends by closing its side is opaque.
//
// A client that sends nothing in that time is opaque, because the
// server may speak first. What it sends later is not looked at, as in linkerd's
// proxy: HTTP that begins after that time is forwarded as it is, with any identity
// headers that the client wrote into it. [WithSkipDetect]
// saves a known protocol of that kind the wait.
//
// The server that is chosen reads everything from the first byte. On Linux a
// TCP connection comes to it as it was accepted, since the kernel lets its bytes
// be seen without taking them; any other comes in a wrapper that gives back what
// was read, with half-close and the kernel's copying kept.
//
// Admission: that of the server that is chosen. A refusal leaves the connection
// open and unread; where that cannot be, since bytes were taken, it is reset, and
// the error is none of kind [layer.ErrNotReady]. Ready waits until one of the
// servers is.
//
// Cancellation: ctx ends the wait for the first byte, too. The connection is
// reset then.
//
// Body: a read deadline that the connection had is gone afterwards.
//
// Errors: those of the server; or a [layer.Error] with [layer.ErrNoRoute], or
// [io.ErrUnexpectedEOF] from a client that left without a word.
//
// Cost: 1 KiB and two system calls for each connection.
func Detect(to Protocols, opts ...DetectOption) Server {
	d := &detect{to: to, detectOptions: newDetectOptions(opts)}
	d.choice = newChoice(to.HTTP1, to.HTTP2, to.Opaque)
	return d
}

// most is what Detect looks at, as linkerd's proxy does.
const most = 1 << 10

type detect struct {
	choice
	detectOptions
	to Protocols
}

func (d *detect) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, gone(ctx, "detect")
	case d.skips(ctx, conn):
		return d.give(ctx, conn, conn, Opaque)
	}
	enough := func(seen []byte) bool {
		_, final := protocolOf(seen)
		return final
	}
	start := time.Now()
	first, next, err := look(ctx, conn, glance{most: most, within: d.timeout, enough: enough})
	protocol := DetectProtocol(first)
	if len(first) > 0 && errors.Is(err, io.EOF) {
		protocol, err = Opaque, nil // the line never ends
	}
	d.meters.record(ctx, start, protocol, err)
	switch {
	case err == nil:
	case ctx.Err() == nil && lateness(err): // opaque, or an HTTP/1 line that has not ended
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "the client left without a word", Err: io.ErrUnexpectedEOF}
	default:
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "no first byte", Err: err}
	}
	return d.give(ctx, conn, next, protocol)
}

func (d *detect) give(ctx context.Context, conn, next net.Conn, p Protocol) (ByteCount, error) {
	svc := d.to.Opaque
	switch {
	case p == HTTP1 && d.to.HTTP1 != nil:
		svc = d.to.HTTP1
	case p == HTTP2 && d.to.HTTP2 != nil:
		svc = d.to.HTTP2
	}
	return handOver(ctx, "detect", svc, conn, next)
}

// Describe shows the servers.
func (d *detect) Describe() layer.Node {
	return d.describe("detect", []string{"http1", "http2", "opaque"}, d.to.HTTP1, d.to.HTTP2, d.to.Opaque)
}

// gone is the refusal of a connection whose context is done.
func gone(ctx context.Context, at string) error {
	return &layer.Error{Layer: at, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}

// handOver has next, which is conn after somebody looked at it, served by svc.
func handOver(ctx context.Context, at string, svc Server, conn, next net.Conn) (ByteCount, error) {
	if svc == nil {
		reset(next)
		return ByteCount{}, &layer.Error{Layer: at, Kind: layer.ErrNoRoute, Reason: "nothing serves such connections"}
	}
	t, err := svc.Call(ctx, next)
	if errors.Is(err, layer.ErrNotReady) && spent(conn, next) {
		return t, spentError(at, next, err)
	}
	return t, err
}

// spent reports whether bytes of conn are in wrappers that next has and conn
// has not.
func spent(conn, next net.Conn) bool {
	holders, _ := conn.(*front)
	for {
		f, ok := next.(*front)
		switch {
		case !ok || f == holders:
			return false
		case f.took:
			return true
		}
		next = f.Conn
	}
}

// spentError resets a connection that was refused after something was read of
// it, and returns the error for that. It matches nothing that err does: who
// was given the connection cannot give it to somebody else.
func spentError(at string, conn net.Conn, err error) error {
	reset(conn)
	return &layer.Error{Layer: at, Reason: "refused after its first bytes were read", Err: &lateRefusalError{err}}
}

// lateRefusalError has the text of a refusal, and is none.
type lateRefusalError struct{ refusal error }

func (e *lateRefusalError) Error() string { return e.refusal.Error() }

// DetectInstruments are where [Detect] writes. Their labels are bound before they
// are given, but for the one that is named. What is nil is not recorded.
type DetectInstruments struct {
	Latency metrics.Histogram // milliseconds until the protocol was known, or was not to be known
	Results metrics.Counter   // connections that were looked at; label "result": http/1, http/2, not_http, read_timeout, error
}

// WithDetectMetrics has [Detect] write to i. Nothing is written of a connection that
// is not looked at, see [WithSkipDetect], or whose context ended meanwhile. The
// label is bound here. [DetectTLS] and [ProxyProtocol] do not write.
func WithDetectMetrics(i DetectInstruments) DetectOption {
	if i.Latency == nil {
		i.Latency = discard.NewHistogram()
	}
	if i.Results == nil {
		i.Results = discard.NewCounter()
	}
	m := &detectMeters{
		latency: i.Latency,
		late:    i.Results.With("result", "read_timeout"), failed: i.Results.With("result", "error"),
	}
	m.spoken[Opaque] = i.Results.With("result", "not_http")
	m.spoken[HTTP1] = i.Results.With("result", "http/1")
	m.spoken[HTTP2] = i.Results.With("result", "http/2")
	return detectOption(func(o *detectOptions) { o.meters = m })
}

// detectMeters are DetectInstruments with all labels bound.
type detectMeters struct {
	latency      metrics.Histogram
	spoken       [HTTP2 + 1]metrics.Counter
	late, failed metrics.Counter
}

// record writes what looking at a connection since start came to: what it speaks,
// or the error that came instead. A nil m writes nothing.
func (m *detectMeters) record(ctx context.Context, start time.Time, spoken Protocol, err error) {
	switch {
	case m == nil, err != nil && ctx.Err() != nil:
		return
	case err == nil:
		m.spoken[spoken].Add(1)
	case lateness(err):
		m.late.Add(1)
	default:
		m.failed.Add(1)
	}
	m.latency.Observe(float64(time.Since(start)) / float64(time.Millisecond))
}

// DetectOption sets how [Detect], [DetectTLS] and [ProxyProtocol] look at
// connections.
type DetectOption interface{ apply(o *detectOptions) }

type detectOptions struct {
	timeout time.Duration
	skip    func(ctx context.Context, conn net.Conn) bool
	meters  *detectMeters // nil: nothing is written
}

type detectOption func(*detectOptions)

func (f detectOption) apply(o *detectOptions) { f(o) }

// WithDetectTimeout is how long to wait for what a client says first. The default
// is 10 s, as in linkerd's proxy; a d of 0 or less means that too.
func WithDetectTimeout(d time.Duration) DetectOption {
	return detectOption(func(o *detectOptions) { o.timeout = d })
}

// WithSkipDetect says of which connections nothing is to be looked at, such as those
// to ports where the server speaks first; see [OriginalDst]. They are opaque, in
// clear, and without a header of the PROXY protocol. It is called once for each
// connection and must return at once. The default, and nil, is of none.
func WithSkipDetect(skip func(ctx context.Context, conn net.Conn) bool) DetectOption {
	return detectOption(func(o *detectOptions) { o.skip = skip })
}

const defaultDetectTimeout = 10 * time.Second

func newDetectOptions(opts []DetectOption) detectOptions {
	var o detectOptions
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.timeout <= 0 {
		o.timeout = defaultDetectTimeout
	}
	return o
}

func (o *detectOptions) skips(ctx context.Context, conn net.Conn) bool {
	return o.skip != nil && o.skip(ctx, conn)
}

// unheard ends a connection whose client has not said enough: err is what came
// instead.
func (o *detectOptions) unheard(conn net.Conn, at, reason string, err error) error {
	e := &layer.Error{Layer: at, Reason: reason, Err: err}
	switch {
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		e.Err = io.ErrUnexpectedEOF
		return e
	case lateness(err):
		e.Kind, e.Waited = layer.ErrTimeout, o.timeout
	}
	reset(conn)
	return e
}
