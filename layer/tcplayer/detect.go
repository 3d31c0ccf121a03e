package tcplayer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Protocols holds the servers of [Detect], by protocol. If a protocol's server is nil, Opaque gets
// this protocol's connections. If Opaque is also nil, they are reset.
type Protocols struct {
	HTTP1, HTTP2, Opaque Server
}

// Detect returns a [Server] that detects which protocol each connection speaks and passes it to the
// server for that protocol. It recognizes HTTP/2 by its preface and HTTP/1 by its request line. The
// first byte that cannot begin either ends the detection: the connection is opaque. So is one that
// is undecided after 10 s ([WithDetectTimeout]), or when the client has closed its sending half,
// whatever has arrived. The chosen server receives all bytes. On Linux it receives the TCP
// connection without a wrapper.
//
// In some protocols the server sends first, so their clients wait for the time limit;
// [WithSkipDetect] avoids this. The later bytes of an opaque connection are not checked: a late
// HTTP request can carry forged identity headers, as in linkerd's proxy.
//
// Admission: the chosen server decides. On Linux, a rejected TCP connection stays open, because the
// kernel still has its first bytes. Other connections stay open only if no byte was read before the
// rejection; otherwise they are reset, with an error that does not match [layer.ErrNotReady]. Ready
// returns nil if one server is ready. Otherwise it waits for the last server that is not nil.
// Cancellation: when ctx ends, so does the wait, and the connection is reset. Body: Detect removes
// the read deadline from the connection. Cost: 1 KiB and two system calls for each connection.
//
// Errors: errors from the server are returned unchanged. Other errors are a [layer.Error], which
// matches [layer.ErrNoRoute] without a server.
func Detect(servers Protocols, opts ...DetectOption) Server {
	d := &detect{servers: servers, detectOptions: newDetectOptions(opts)}
	d.choice = newChoice(servers.HTTP1, servers.HTTP2, servers.Opaque)
	return d
}

// maxDetect is the maximum number of bytes that Detect reads, as in linkerd's proxy.
const maxDetect = 1 << 10

// detect is the Server that Detect returns.
type detect struct {
	choice
	detectOptions
	servers Protocols
}

// Call waits for the connection's first bytes and passes it to the server for its protocol.
func (d *detect) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "detect")
	case d.skips(ctx, conn):
		return d.serveProtocol(ctx, conn, conn, Opaque)
	}
	// final is true as soon as more bytes cannot change the protocol, so that the client waits no longer than
	// necessary.
	enough := func(data []byte) bool {
		_, final := protocolOf(data)
		return final
	}
	// For the metric of the duration.
	start := time.Now()
	first, next, err := peekFirst(ctx, conn, peekSpec{max: maxDetect, timeout: d.timeLeft(ctx), enough: enough})
	protocol, final := protocolOf(first)
	// The order matters: what is known about the protocol counts more than the error with which the wait ended.
	switch {
	case final:
	case errors.Is(err, io.EOF): // the server may still send; it receives the end, too
		if len(first) > 0 { // otherwise it is counted as an error, as in linkerd's proxy
			err = nil
		}
	// The time is over but the client is still there, so the connection is opaque.
	case ctx.Err() == nil && isTimeout(err):
		d.logUndecided(ctx, conn, "protocol", len(first))
	case err != nil:
		d.meters.record(ctx, start, protocol, err)
		// The connection has failed or ctx has ended, so no server gets it.
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "no first byte", Err: err}
	}
	d.meters.record(ctx, start, protocol, err)
	return d.serveProtocol(ctx, conn, next, protocol)
}

// serveProtocol passes next to the server for the protocol p, or to Opaque if there is none. conn and
// next are as for serveNext.
func (d *detect) serveProtocol(ctx context.Context, conn, next net.Conn, p Protocol) (ByteCount, error) {
	// Opaque also serves a protocol without a server of its own.
	svc := d.servers.Opaque
	switch {
	case p == HTTP1 && d.servers.HTTP1 != nil:
		svc = d.servers.HTTP1
	case p == HTTP2 && d.servers.HTTP2 != nil:
		svc = d.servers.HTTP2
	}
	return serveNext(ctx, "detect", svc, conn, next)
}

// Describe shows the servers by protocol.
func (d *detect) Describe() layer.Node {
	return d.describe("detect", []string{"http1", "http2", "opaque"}, d.servers.HTTP1, d.servers.HTTP2, d.servers.Opaque)
}

// canceledError returns the error with which the layer called name rejects a connection because ctx
// has ended.
func canceledError(ctx context.Context, name string) error {
	return &layer.Error{Layer: name, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}

// serveNext passes the connection next to the server svc. The connection next is conn, or a wrapper
// that first returns the peeked bytes. If svc is nil, serveNext resets the connection. If svc
// rejects it after bytes were read, serveNext also resets it, and the error does not match
// [layer.ErrNotReady]. The error names the layer name.
func serveNext(ctx context.Context, name string, svc Server, conn, next net.Conn) (ByteCount, error) {
	if svc == nil {
		reset(next)
		return ByteCount{}, &layer.Error{Layer: name, Kind: layer.ErrNoRoute, Reason: "no server for this kind of connection"}
	}
	t, err := svc.Call(ctx, next)
	// The server has rejected the connection, but its first bytes are no longer in it for others.
	if errors.Is(err, layer.ErrNotReady) && consumed(conn, next) {
		return t, consumedError(name, next, err)
	}
	return t, err
}

// consumed reports whether next, which wraps conn, has read bytes from conn, so that only next's
// Read returns them. If next is conn itself, the result is false.
func consumed(conn, next net.Conn) bool {
	// conn may be a wrapper of an earlier detection. Only the wrappers above conn belong to this one.
	holders, _ := conn.(*bufferedConn)
	for {
		f, ok := next.(*bufferedConn)
		switch {
		case !ok || f == holders:
			return false
		case f.consumed:
			return true
		}
		next = f.Conn
	}
}

// consumedError resets a connection that was rejected after its first bytes were read. The
// returned error does not match [layer.ErrNotReady], so that no layer passes the connection
// to another server.
func consumedError(name string, conn net.Conn, err error) error {
	reset(conn)
	return &layer.Error{Layer: name, Reason: "rejected after the first bytes were read", Err: &lateError{err}}
}

// lateError wraps a rejection so that it does not match [layer.ErrNotReady], because bytes were
// read before the rejection. [ErrorKind] still returns the label value of the rejection.
type lateError struct{ rejection error }

func (e *lateError) Error() string { return e.rejection.Error() }

// DetectInstruments are the metrics for [Detect]. You should bind all labels with With, except
// for "result" in Results, which Detect sets. A nil metric is not recorded.
type DetectInstruments struct {
	Latency metrics.Histogram // milliseconds from the start of the detection to its result
	Results metrics.Counter   // label "result": http/1, http/2, not_http, read_timeout, error
}

// WithDetectMetrics makes [Detect] record its metrics to i. It records neither
// connections that [WithSkipDetect] excludes nor detections that fail after the end of
// the context. [DetectTLS], [DetectTransport] and [ProxyProtocol] ignore this option.
func WithDetectMetrics(i DetectInstruments) DetectOption {
	if i.Latency == nil {
		i.Latency = discard.NewHistogram()
	}
	if i.Results == nil {
		i.Results = discard.NewCounter()
	}
	m := &detectMeters{
		latency:  i.Latency,
		timedOut: i.Results.With("result", "read_timeout"), failed: i.Results.With("result", "error"),
	}
	// Bound here, because a look-up of the label for each connection would be slow.
	m.spoken[Opaque] = i.Results.With("result", "not_http")
	m.spoken[HTTP1] = i.Results.With("result", "http/1")
	m.spoken[HTTP2] = i.Results.With("result", "http/2")
	return func(o *detectOptions) { o.meters = m }
}

// detectMeters are the metrics from DetectInstruments, with one counter for each value of the
// label "result".
type detectMeters struct {
	latency          metrics.Histogram
	spoken           [HTTP2 + 1]metrics.Counter // index: protocol
	timedOut, failed metrics.Counter            // results read_timeout and error
}

// record counts the result of a detection and records its duration since start. The result is the
// protocol spoken if err is nil, and otherwise a timeout or another error. If m is nil, or err
// occurred after ctx had ended, record does nothing.
func (m *detectMeters) record(ctx context.Context, start time.Time, spoken Protocol, err error) {
	switch {
	// A detection that was canceled shows nothing about the client.
	case m == nil, err != nil && ctx.Err() != nil:
		return
	case err == nil:
		m.spoken[spoken].Add(1)
	case isTimeout(err):
		m.timedOut.Add(1)
	default:
		m.failed.Add(1)
	}
	m.latency.Observe(float64(time.Since(start)) / float64(time.Millisecond))
}

// DetectOption is an option of [Detect], [DetectTLS], [DetectTransport] and
// [ProxyProtocol].
type DetectOption func(*detectOptions)

// detectOptions holds the options of a detection.
type detectOptions struct {
	timeout time.Duration
	skip    func(ctx context.Context, conn net.Conn) bool
	meters  *detectMeters // nil means no metrics
	log     *slog.Logger  // nil means no log
}

// WithDetectTimeout sets how long to wait for a client's first bytes. After that, [Detect] treats the
// connection as opaque, and [DetectTLS] as cleartext. [DetectTransport] resets it, and [ProxyProtocol]
// returns an error. The default is 10 s, as in linkerd's proxy. A d of 0 or less selects the default.
func WithDetectTimeout(d time.Duration) DetectOption {
	return func(o *detectOptions) { o.timeout = d }
}

// WithSkipDetect excludes the connections for which skip returns true from detection. An example is
// a connection to a port on which the server sends first; see [OriginalDst]. [Detect] treats an
// excluded connection as opaque, and [DetectTLS] treats it as cleartext. [DetectTransport] and
// [ProxyProtocol] read no header from it. skip is called once for each connection and must not
// block. If it is nil, no connection is excluded.
func WithSkipDetect(skip func(ctx context.Context, conn net.Conn) bool) DetectOption {
	return func(o *detectOptions) { o.skip = skip }
}

// WithDetectLogger makes [Detect] and [DetectTLS] log each connection that is undecided when the
// time is over, at level Debug. By default nothing is logged. [DetectTransport] and
// [ProxyProtocol] ignore this option.
func WithDetectLogger(l *slog.Logger) DetectOption {
	return func(o *detectOptions) { o.log = l }
}

// defaultDetectTimeout is how long a client may take to send what is needed to detect its protocol.
const defaultDetectTimeout = 10 * time.Second

// newDetectOptions returns the options in opts, with the default time limit if there is none.
func newDetectOptions(opts []DetectOption) detectOptions {
	var o detectOptions
	option.Apply(&o, opts)
	if o.timeout <= 0 {
		o.timeout = defaultDetectTimeout
	}
	return o
}

// skips reports whether an option excludes conn from detection.
func (o *detectOptions) skips(ctx context.Context, conn net.Conn) bool {
	return o.skip != nil && o.skip(ctx, conn)
}

// waitedKey is the context key of a connection whose time for detection is over.
type waitedKey struct{}

// timeLeft returns how long to wait for a client's first bytes. It is 0 if [DetectTLS] has
// already waited for them, so that the client does not wait twice.
func (o *detectOptions) timeLeft(ctx context.Context) time.Duration {
	if ctx.Value(waitedKey{}) != nil {
		return 0
	}
	return o.timeout
}

// logUndecided logs that the time is over before subject, such as "protocol", was detected,
// although size bytes have arrived.
func (o *detectOptions) logUndecided(ctx context.Context, conn net.Conn, subject string, size int) {
	if o.log != nil {
		o.log.DebugContext(ctx, "detection timed out, treating the connection as opaque",
			"detect", subject, "client", conn.RemoteAddr(), "timeout", o.timeout, "bytes", size)
	}
}

// noBytesError ends a connection on which the client sent too few bytes for the detection. If err
// is io.EOF, it closes the connection. After any other err, it resets the connection. It returns a
// [layer.Error] of the layer called name, with the given reason.
func (o *detectOptions) noBytesError(conn net.Conn, name, reason string, err error) error {
	e := &layer.Error{Layer: name, Reason: reason, Err: err}
	switch {
	// The client has closed its sending half, so it gets a normal end.
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		// A plain io.EOF could be taken for the normal end of a connection.
		e.Err = io.ErrUnexpectedEOF
		return e
	case isTimeout(err):
		e.Kind, e.Waited = layer.ErrTimeout, o.timeout
	}
	reset(conn)
	return e
}

// choice holds the servers between which a detection chooses. Servers that are nil are left out.
type choice struct{ servers []Server }

// newChoice returns a choice between those servers that are not nil.
func newChoice(servers ...Server) choice {
	var c choice
	for _, svc := range servers {
		if svc != nil {
			c.servers = append(c.servers, svc)
		}
	}
	return c
}

// Ready returns nil if one of the servers is ready. Otherwise it waits for the last one, which
// serves the connections that no other server takes.
func (c choice) Ready(ctx context.Context) error {
	for i, svc := range c.servers {
		// Ready of a server that is ready returns at once.
		if last := i == len(c.servers)-1; last || layer.Poll(svc) == nil {
			return svc.Ready(ctx)
		}
	}
	return nil
}

// describe returns a node with a child for each server that is not nil. The names are in the same
// order as the servers.
func (c choice) describe(name string, names []string, servers ...Server) layer.Node {
	n := layer.Node{Name: name}
	for i, svc := range servers {
		if svc != nil {
			n.Children = append(n.Children, layer.Node{Name: names[i], Children: []layer.Node{layer.Describe(svc)}})
		}
	}
	return n
}
