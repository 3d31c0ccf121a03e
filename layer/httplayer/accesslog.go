package httplayer

import (
	"cmp"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// AccessLogFormat selects the format of the lines that [AccessLog] writes.
type AccessLogFormat string

// The formats of an [AccessLog].
const (
	// ApacheLog is Apache's common log format, with the time in RFC 3339:
	//
	//	10.0.0.7:51160 web.default.serviceaccount.identity - [2022-08-23T20:28:20.071809491Z] "GET http://api:80/ HTTP/2.0" 200 5
	ApacheLog AccessLogFormat = "apache"

	// JSONLog writes one JSON object per line, with the names of linkerd's proxy:
	// client.addr, client.id, host, method, processing_ns, request_bytes, response_bytes,
	// status, timestamp, total_ns, trace_id, uri, user_agent, version. The object also has
	// attempts, endpoint, error, route and upstream, if a layer has reported them to the
	// [layer.Record] of the request. Counts, times in ns and the status are JSON numbers.
	JSONLog AccessLogFormat = "json"
)

// AccessLog returns a middleware that writes one line per request, when its response has
// ended. Place it outermost, so that it logs the response that the client receives. Each
// line is one Write to the writer, and Writes do not overlap. A request waits for its
// Write, so use a buffered writer if the writer can be slow. If the writer is nil, the
// middleware returns the handler unchanged. An unknown format means [ApacheLog].
//
//	handler := httplayer.AccessLog(os.Stderr, httplayer.JSONLog, nil)(httplayer.Handler(svc))
//
// request_bytes and response_bytes count body bytes. A hijacked connection has no counts,
// and its status is 200 for CONNECT and otherwise 101. processing_ns is the time until the
// response headers, and total_ns the time until the end of the response. client.id is the
// result of clientName, or "-" if the result is "". If clientName is nil, client.id is the
// name in the verified client certificate. trace_id comes from the first of these headers
// that is present: x-b3-traceid, traceparent, x-request-id, x-amzn-trace-id.
//
// Text from clients is escaped, so that it cannot add a line. Requests that the server
// rejects before the handler are not logged. The cost is 8 to 10 allocations per request.
func AccessLog(to io.Writer, format AccessLogFormat, clientName func(*http.Request) string) func(http.Handler) http.Handler {
	log := &accessLog{to: to, write: (*accessEntry).apache, id: clientName}
	if clientName == nil {
		log.id = func(r *http.Request) string { return caller.Client(clientTLS(r)) }
	}
	if format == JSONLog {
		log.write = (*accessEntry).json
	}
	return func(h http.Handler) http.Handler {
		if h == nil {
			panic("httplayer: nil handler")
		}
		if to == nil {
			return h
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { log.serve(h, w, r) })
	}
}

type accessLog struct {
	write func(e *accessEntry, b []byte) []byte
	id    func(*http.Request) string

	mu   sync.Mutex
	to   io.Writer
	line []byte // buffer of the last line, which the next line reuses
}

// serve serves r by h and writes the line.
func (l *accessLog) serve(h http.Handler, w http.ResponseWriter, r *http.Request) {
	x := serving(w, r)
	ctx, record := layer.WithRecord(r.Context())
	e := &accessEntry{exchange: x, record: record, began: time.Now(), id: l.id(r)}
	x.observers = append(x.observers, e)
	own := r.WithContext(ctx) // the server keeps using its own request
	if hasBody(r) {
		own.Body = newTeeBody(r.Body, func(_ int64, p []byte) { e.read.Add(int64(len(p))) })
	}
	defer handBack(r, own)
	defer func() {
		e.ended = time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.line = append(l.write(e, l.line[:0]), '\n')
		_, _ = l.to.Write(l.line) // a failed write cannot be reported
	}()
	h.ServeHTTP(x, own)
}

// accessEntry has the data of the log line of one request.
type accessEntry struct {
	exchange           *served
	record             *layer.Record
	id                 string
	began, head, ended time.Time
	read, written      atomic.Int64 // atomic, because handlers may use other goroutines
}

// ResponseStarted records the current time as the time of the response headers. It
// implements [layer.ResponseObserver].
func (e *accessEntry) ResponseStarted(*http.Response) { e.head = time.Now() }

// ResponseData adds n to the number of response bytes. It implements
// [layer.ResponseObserver].
func (e *accessEntry) ResponseData(n int, _ []byte) { e.written.Add(int64(n)) }

// apache appends the entry to b in Apache's common log format.
func (e *accessEntry) apache(b []byte) []byte {
	r := e.exchange.received
	b = append(plain(b, r.RemoteAddr), ' ')
	b = append(plain(b, e.id), " - ["...)
	b = append(e.began.UTC().AppendFormat(b, time.RFC3339Nano), "] \""...)
	b = append(escaped(b, r.Method), ' ')
	b = append(escaped(b, uri(r)), ' ')
	b = append(escaped(b, r.Proto), "\" "...)
	b = append(number(b, int64(e.exchange.code())), ' ')
	if e.exchange.hijacked {
		return append(b, '-')
	}
	return number(b, e.written.Load())
}

// json appends the entry to b as a JSON object with sorted keys.
func (e *accessEntry) json(b []byte) []byte {
	r, facts := e.exchange.received, e.record.Facts()
	head := e.head
	if head.IsZero() {
		head = e.ended
	}
	client := r.RemoteAddr
	if facts.Client.IsValid() {
		client = facts.Client.String()
	}
	b = append(b, '{')
	if facts.Attempts > 0 {
		b = append(number(append(b, `"attempts":`...), int64(facts.Attempts)), ',')
	}
	b = text(append(b, `"client.addr":`...), client)
	b = text(append(b, `,"client.id":`...), cmp.Or(e.id, "-"))
	if facts.Endpoint.IsValid() {
		b = text(append(b, `,"endpoint":`...), facts.Endpoint.String())
	}
	if facts.Err != nil {
		b = text(append(b, `,"error":`...), facts.Err.Error())
	}
	b = text(append(b, `,"host":`...), Accessor{}.Authority(r))
	b = text(append(b, `,"method":`...), r.Method)
	b = number(append(b, `,"processing_ns":`...), int64(head.Sub(e.began)))
	if !e.exchange.hijacked {
		b = number(append(b, `,"request_bytes":`...), e.read.Load())
		b = number(append(b, `,"response_bytes":`...), e.written.Load())
	}
	if facts.Route != "" {
		b = text(append(b, `,"route":`...), facts.Route)
	}
	b = number(append(b, `,"status":`...), int64(e.exchange.code()))
	b = append(e.began.UTC().AppendFormat(append(b, `,"timestamp":"`...), time.RFC3339Nano), '"')
	b = number(append(b, `,"total_ns":`...), int64(e.ended.Sub(e.began)))
	b = text(append(b, `,"trace_id":`...), traceOf(r.Header))
	if facts.Target != "" {
		b = text(append(b, `,"upstream":`...), facts.Target)
	}
	b = text(append(b, `,"uri":`...), uri(r))
	b = text(append(b, `,"user_agent":`...), r.Header.Get("User-Agent"))
	b = text(append(b, `,"version":`...), r.Proto)
	return append(b, '}')
}

func number(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// uri returns the request target of r. If the target is a path, uri puts the scheme and the
// host before it.
func uri(r *http.Request) string {
	var a Accessor
	if strings.HasPrefix(r.RequestURI, "/") {
		return a.Scheme(r) + "://" + a.Authority(r) + r.RequestURI
	}
	return r.RequestURI
}

// traceOf returns the trace ID in h, or "" without one. The first of these headers that has
// an ID applies: X-B3-Traceid, Traceparent, X-Request-ID, X-Amzn-Trace-Id.
func traceOf(h http.Header) string {
	parent := ""
	if parts := strings.Split(h.Get("Traceparent"), "-"); len(parts) >= 4 {
		parent = parts[1]
	}
	return cmp.Or(h.Get("X-B3-Traceid"), parent, h.Get("X-Request-ID"), h.Get("X-Amzn-Trace-Id"))
}

const hexDigits = "0123456789abcdef"

// plain appends s with Apache's escapes and with "_" instead of each space. It appends "-"
// if s is empty.
func plain(b []byte, s string) []byte {
	return escaped(b, strings.ReplaceAll(cmp.Or(s, "-"), " ", "_"))
}

// escaped appends s with Apache's escapes. The result has no unescaped quote and no line
// break.
func escaped(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c >= 0x7f:
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

// text appends s as a JSON string. It escapes all control characters, and replaces invalid
// UTF-8.
func text(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r >= ' ' && r < 0x7f && r != '"' && r != '\\': // the usual case
			b = append(b, byte(r))
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == utf8.RuneError:
			b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
