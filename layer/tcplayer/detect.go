package tcplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Protocols has the servers of [Detect], by protocol. If the server of a protocol is nil, Opaque
// gets the connections of this protocol. If Opaque is also nil, they are reset.
type Protocols struct {
	HTTP1, HTTP2, Opaque Server
}

// Detect returns a [Server] that detects the protocol of each connection and passes the
// connection to the server of that protocol. It recognizes HTTP/2 by its preface and HTTP/1
// by its request line. It waits up to 10 s ([WithDetectTimeout]) for the first line, and
// reads up to 1,024 bytes. The chosen server receives all bytes. On Linux it receives the
// TCP connection without a wrapper.
//
// A client that sends nothing in that time counts as opaque, because in some protocols the
// server sends first. Its later bytes are not checked: a late HTTP request can carry forged
// identity headers, as in linkerd's proxy. [WithSkipDetect] avoids the wait.
//
// Admission: the chosen server decides. On Linux, a rejected TCP connection stays open, because the
// kernel still has its first bytes. Other connections stay open only if no byte was read before the
// rejection. Otherwise they are reset, with an error that does not match [layer.ErrNotReady]. Ready
// returns nil if one server is ready. Otherwise it waits for the last server that is not nil.
// Cancellation: the end of ctx ends the wait and resets the connection. Body: Detect removes the
// read deadline of the connection. Cost: 1 KiB and two system calls for each connection.
//
// Errors: errors of the server are returned unchanged. Other errors are a [layer.Error]. It
// matches [layer.ErrNoRoute] without a server, and [io.ErrUnexpectedEOF] if the client
// closed before the first byte.
func Detect(to Protocols, opts ...DetectOption) Server {
	d := &detect{to: to, detectOptions: newDetectOptions(opts)}
	d.choice = newChoice(to.HTTP1, to.HTTP2, to.Opaque)
	return d
}

// maxDetect is the maximum number of bytes that Detect reads, as in linkerd's proxy.
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
		return d.serveProtocol(ctx, conn, conn, Opaque)
	}
	enough := func(seen []byte) bool {
		_, final := protocolOf(seen)
		return final
	}
	start := time.Now()
	first, next, err := peekFirst(ctx, conn, peekSpec{max: maxDetect, within: d.timeout, enough: enough})
	protocol, _ := protocolOf(first)
	if len(first) > 0 && errors.Is(err, io.EOF) {
		protocol, err = Opaque, nil // the line never ends
	}
	d.meters.record(ctx, start, protocol, err)
	switch {
	case err == nil:
	case ctx.Err() == nil && isTimeout(err): // opaque, or an incomplete line of HTTP/1
	case errors.Is(err, io.EOF):
		_ = conn.Close()
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "closed before the first byte", Err: io.ErrUnexpectedEOF}
	default:
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "detect", Reason: "no first byte", Err: err}
	}
	return d.serveProtocol(ctx, conn, next, protocol)
}

func (d *detect) serveProtocol(ctx context.Context, conn, next net.Conn, p Protocol) (ByteCount, error) {
	svc := d.to.Opaque
	switch {
	case p == HTTP1 && d.to.HTTP1 != nil:
		svc = d.to.HTTP1
	case p == HTTP2 && d.to.HTTP2 != nil:
		svc = d.to.HTTP2
	}
	return serveNext(ctx, "detect", svc, conn, next)
}

// Describe shows the servers by protocol.
func (d *detect) Describe() layer.Node {
	return d.describe("detect", []string{"http1", "http2", "opaque"}, d.to.HTTP1, d.to.HTTP2, d.to.Opaque)
}

// canceledError returns the error with which a layer rejects a connection, because ctx has
// ended. The argument at is the name of the layer.
func canceledError(ctx context.Context, at string) error {
	return &layer.Error{Layer: at, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
}

// serveNext passes the connection next to the server svc. The connection next is conn, or a
// wrapper of conn that first returns the bytes of a peek. If svc is nil, serveNext resets the
// connection. If svc rejects it after bytes were read, serveNext also resets it, and the error
// does not match [layer.ErrNotReady]. The argument at is the name of the layer in errors.
func serveNext(ctx context.Context, at string, svc Server, conn, next net.Conn) (ByteCount, error) {
	if svc == nil {
		reset(next)
		return ByteCount{}, &layer.Error{Layer: at, Kind: layer.ErrNoRoute, Reason: "no server for this kind of connection"}
	}
	t, err := svc.Call(ctx, next)
	if errors.Is(err, layer.ErrNotReady) && consumed(conn, next) {
		return t, consumedError(at, next, err)
	}
	return t, err
}

// consumed reports whether next, a wrapper of conn, has read bytes from conn, so that only a Read
// of next returns them. If next is conn itself, the result is false.
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

// consumedError resets a connection that was rejected after its first bytes were read. The
// returned error does not match [layer.ErrNotReady], so that no layer passes the connection
// to another server.
func consumedError(at string, conn net.Conn, err error) error {
	reset(conn)
	return &layer.Error{Layer: at, Reason: "rejected after the first bytes were read", Err: &lateError{err}}
}

// lateError wraps a rejection so that it does not match [layer.ErrNotReady], because bytes were
// read before the rejection. [ErrorKind] still returns the label value of the rejection.
type lateError struct{ rejection error }

func (e *lateError) Error() string { return e.rejection.Error() }

// DetectInstruments are the metrics of [Detect]. Give each metric the values of all its
// labels by With, except for the label "result" of Results, which Detect sets. A nil
// metric is not recorded.
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
		latency: i.Latency,
		late:    i.Results.With("result", "read_timeout"), failed: i.Results.With("result", "error"),
	}
	m.spoken[Opaque] = i.Results.With("result", "not_http")
	m.spoken[HTTP1] = i.Results.With("result", "http/1")
	m.spoken[HTTP2] = i.Results.With("result", "http/2")
	return func(o *detectOptions) { o.meters = m }
}

// detectMeters are the metrics of DetectInstruments, with one counter for each value of the
// label "result".
type detectMeters struct {
	latency      metrics.Histogram
	spoken       [HTTP2 + 1]metrics.Counter // index: protocol
	late, failed metrics.Counter            // results read_timeout and error
}

// record counts the result of a detection and records its duration since start. The result is the
// protocol spoken if err is nil, and otherwise a timeout or another error. If m is nil, or err
// occurred after the end of ctx, record does nothing.
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

// DetectOption is an option of [Detect], [DetectTLS], [DetectTransport] and
// [ProxyProtocol].
type DetectOption func(*detectOptions)

type detectOptions struct {
	timeout time.Duration
	skip    func(ctx context.Context, conn net.Conn) bool
	meters  *detectMeters // nil means no metrics
}

// WithDetectTimeout sets the maximum wait for the first bytes of a client. The default is
// 10 s, as in linkerd's proxy. A d of 0 or less selects the default.
func WithDetectTimeout(d time.Duration) DetectOption {
	return func(o *detectOptions) { o.timeout = d }
}

// WithSkipDetect excludes the connections for which the function skip returns true from detection.
// An example is a connection to a port on which the server sends first; see [OriginalDst]. [Detect]
// treats an excluded connection as opaque, and [DetectTLS] treats it as cleartext.
// [DetectTransport] and [ProxyProtocol] read no header from it. The function skip is called once
// for each connection and must not block. If it is nil, no connection is excluded.
func WithSkipDetect(skip func(ctx context.Context, conn net.Conn) bool) DetectOption {
	return func(o *detectOptions) { o.skip = skip }
}

const defaultDetectTimeout = 10 * time.Second

func newDetectOptions(opts []DetectOption) detectOptions {
	var o detectOptions
	option.Apply(&o, opts)
	if o.timeout <= 0 {
		o.timeout = defaultDetectTimeout
	}
	return o
}

func (o *detectOptions) skips(ctx context.Context, conn net.Conn) bool {
	return o.skip != nil && o.skip(ctx, conn)
}

// noBytesError ends a connection on which the client sent too few bytes for the detection. If err
// is io.EOF, it closes the connection. After any other err, it resets the connection. It returns a
// [layer.Error] with the given reason. The argument at is the name of the layer.
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

// choice has the servers between which a detection chooses. Servers that are nil are left out.
type choice struct{ servers []Server }

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
		if last := i == len(c.servers)-1; last || layer.Poll(svc) == nil {
			return svc.Ready(ctx)
		}
	}
	return nil
}

// describe returns a node with a child for each server that is not nil. The names have the
// same order as the servers.
func (c choice) describe(name string, names []string, servers ...Server) layer.Node {
	n := layer.Node{Name: name}
	for i, svc := range servers {
		if svc != nil {
			n.Children = append(n.Children, layer.Node{Name: names[i], Children: []layer.Node{layer.Describe(svc)}})
		}
	}
	return n
}

// Protocol is an application protocol that [Detect] recognizes by the first bytes of a
// connection.
type Protocol uint8

// The protocols that [Detect] recognizes. Opaque is any other protocol.
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

// preface is the start of a connection of HTTP/2 with prior knowledge (RFC 9113, section
// 3.4).
const preface = "PRI * HTTP/2.0"

// protocolOf returns the protocol of a connection with the given first bytes. The result is
// final if more bytes cannot change it.
//
// A malformed request line counts as HTTP/1, so that an HTTP server rejects it. If it counted as
// opaque, a lenient HTTP parser could accept it, with header fields that were not checked. An
// incomplete line that begins with a token counts as HTTP/1, but this result is not final.
// Therefore Detect waits up to its timeout for the end of such a line.
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

// isRequestLine reports whether a lenient parser could accept the words as a request line
// of HTTP/1. It could if the last word is a version, or if the line is a GET of HTTP/0.9.
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
			return false // for example a line of an access log, which ends in HTTP/1.1"
		}
	}
	return true
}

// wordsOf splits line into words at every byte that some HTTP parser treats as white space.
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

// isToken reports whether c is allowed in a token (tchar of RFC 9110, section 5.6.2).
func isToken(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 }

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
