package tcplayer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/panics"
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
const maxDetect = 1 << 10

type detect struct {
	choice
	detectOptions
	to Protocols
}

func (d *detect) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "detect")
	case d.skips(ctx, conn):
		return d.give(ctx, conn, conn, Opaque)
	}
	enough := func(seen []byte) bool {
		_, final := protocolOf(seen)
		return final
	}
	start := time.Now()
	first, next, err := peekFirst(ctx, conn, peekSpec{max: maxDetect, within: d.timeout, enough: enough})
	protocol := DetectProtocol(first)
	if len(first) > 0 && errors.Is(err, io.EOF) {
		protocol, err = Opaque, nil // the line never ends
	}
	d.meters.record(ctx, start, protocol, err)
	switch {
	case err == nil:
	case ctx.Err() == nil && isTimeout(err): // opaque, or an HTTP/1 line that has not ended
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
	return serveNext(ctx, "detect", svc, conn, next)
}

// Describe shows the servers.
func (d *detect) Describe() layer.Node {
	return d.describe("detect", []string{"http1", "http2", "opaque"}, d.to.HTTP1, d.to.HTTP2, d.to.Opaque)
}

// gone is the refusal of a connection whose context is done.
func canceledError(ctx context.Context, at string) error {
	return &layer.Error{Layer: at, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}

// handOver has next, which is conn after somebody looked at it, served by svc.
func serveNext(ctx context.Context, at string, svc Server, conn, next net.Conn) (ByteCount, error) {
	if svc == nil {
		reset(next)
		return ByteCount{}, &layer.Error{Layer: at, Kind: layer.ErrNoRoute, Reason: "nothing serves such connections"}
	}
	t, err := svc.Call(ctx, next)
	if errors.Is(err, layer.ErrNotReady) && consumed(conn, next) {
		return t, consumedError(at, next, err)
	}
	return t, err
}

// spent reports whether bytes of conn are in wrappers that next has and conn
// has not.
func consumed(conn, next net.Conn) bool {
	holders, _ := conn.(*bufferedConn)
	for {
		f, ok := next.(*bufferedConn)
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
func consumedError(at string, conn net.Conn, err error) error {
	reset(conn)
	return &layer.Error{Layer: at, Reason: "refused after its first bytes were read", Err: &lateRejection{err}}
}

// lateRefusalError has the text of a refusal, and is none.
type lateRejection struct{ refusal error }

func (e *lateRejection) Error() string { return e.refusal.Error() }

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
	case isTimeout(err):
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
func (o *detectOptions) noBytesError(conn net.Conn, at, reason string, err error) error {
	e := &layer.Error{Layer: at, Reason: reason, Err: err}
	switch {
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		e.Err = io.ErrUnexpectedEOF
		return e
	case isTimeout(err):
		e.Kind, e.Waited = layer.ErrTimeout, o.timeout
	}
	reset(conn)
	return e
}

// choice is several servers, of which each connection goes to one that is not
// known before.
type choice struct{ servers []Server }

// newChoice leaves out what is nil.
func newChoice(servers ...Server) choice {
	var c choice
	for _, svc := range servers {
		if svc != nil {
			c.servers = append(c.servers, svc)
		}
	}
	return c
}

// Ready waits until one of the servers is ready.
func (c choice) Ready(ctx context.Context) error {
	if len(c.servers) == 0 {
		return nil
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(c.servers))
	for _, svc := range c.servers {
		go func() { answers <- ready(asking, svc) }()
	}
	var notReady, closed error
	for range c.servers {
		switch err := <-answers; {
		case err == nil:
			return nil
		case errors.Is(err, layer.ErrClosed):
			closed = err
		default:
			notReady = errors.Join(notReady, err)
		}
	}
	return cmp.Or(notReady, closed)
}

// ready asks svc. A panic is its answer.
func ready(ctx context.Context, svc Server) (err error) {
	defer panics.Recover(&err)
	return svc.Ready(ctx)
}

// describe shows servers under their names; one that is nil is left out.
func (c choice) describe(name string, names []string, servers ...Server) layer.Node {
	n := layer.Node{Name: name}
	for i, svc := range servers {
		if svc != nil {
			n.Children = append(n.Children, layer.Node{Name: names[i], Children: []layer.Node{layer.Describe(svc)}})
		}
	}
	return n
}

// Protocol is what a client speaks, as far as its first bytes tell.
type Protocol uint8

// The protocols that [DetectProtocol] knows. Opaque is all others.
const (
	Opaque Protocol = iota
	HTTP1
	HTTP2
)

// String returns "opaque", "HTTP/1" or "HTTP/2".
func (p Protocol) String() string {
	switch p {
	case HTTP1:
		return "HTTP/1"
	case HTTP2:
		return "HTTP/2"
	default:
		return "opaque"
	}
}

// preface is how HTTP/2 begins with prior knowledge (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0"

// DetectProtocol tells a protocol by the first bytes of a client: HTTP/2 by its
// preface, HTTP/1 by its request line, and everything else is opaque.
//
// A request line that is malformed is HTTP/1 too, so that an HTTP server rejects
// it: one with further blanks, another version, an odd method or, in HTTP/0.9, no
// version. As opaque bytes it would reach an application whose parser is lenient,
// with header fields that nothing has checked. A line that has not ended is HTTP/1 if it
// begins with a token: text without line ends waits for the detection timeout.
func DetectProtocol(first []byte) Protocol {
	p, _ := protocolOf(first)
	return p
}

// protocolOf also reports whether further bytes cannot change the answer.
func protocolOf(first []byte) (p Protocol, final bool) {
	if bytes.HasPrefix(first, []byte(preface)) {
		return HTTP2, true
	}
	// Empty lines may come before a request (RFC 9112, section 2.2).
	line, _, ended := bytes.Cut(bytes.TrimLeft(first, " \t\r\n"), []byte{'\n'})
	words := wordsOf(line)
	switch {
	case len(first) == 0:
		return Opaque, false
	case len(words) == 0:
		return HTTP1, false
	case !isToken(words[0][0]) || !isPrintable(words[0]):
		return Opaque, true
	case !ended:
		return HTTP1, false
	case isRequestLine(words):
		return HTTP1, true
	}
	return Opaque, true
}

// isRequestLine reports whether a parser may take a line of such words for the
// request line of HTTP/1: the last one is a version, or it is the GET of HTTP/0.9.
func isRequestLine(words [][]byte) bool {
	if len(words) == 2 && string(words[0]) == "GET" && words[1][0] == '/' {
		return true
	}
	const name = "HTTP/"
	last := words[len(words)-1]
	if len(words) < 2 || len(last) < len(name) || !bytes.EqualFold(last[:len(name)], []byte(name)) {
		return false
	}
	for _, c := range last[len(name):] {
		if c != '.' && !isAlphanumeric(c) {
			return false // an access log that is sent as text ends a line in HTTP/1.1"
		}
	}
	return true
}

// wordsOf splits a line at every byte that a parser is known to take for a blank.
func wordsOf(line []byte) [][]byte {
	spaced := bytes.Clone(line)
	for i, c := range spaced {
		if '\t' <= c && c <= '\r' || 0x1c <= c && c <= ' ' || c == 0x85 || c == 0xa0 {
			spaced[i] = ' '
		}
	}
	return bytes.FieldsFunc(spaced, func(r rune) bool { return r == ' ' })
}

func isPrintable(word []byte) bool {
	for _, c := range word {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// isToken is a tchar of RFC 9110, section 5.6.2.
func isToken(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 }

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
