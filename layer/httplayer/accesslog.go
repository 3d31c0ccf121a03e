package httplayer

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/internal/logwriter"
)

// AccessLogFormat selects the format of the lines that [WithAccessLog] writes.
type AccessLogFormat string

// The formats of [WithAccessLog].
const (
	// ApacheLog is the format with this name in linkerd's proxy. It is Apache's common log format, but
	// with the time in RFC 3339, the client's port and the whole URL:
	//
	//	10.0.0.7:51160 web.default.serviceaccount.identity - [2022-08-23T20:28:20.071809491Z] "GET http://api:80/ HTTP/2.0" 200 5
	ApacheLog AccessLogFormat = "apache"

	// CommonLog is the common log format of Apache and nginx, and CombinedLog the combined one, which
	// programs for statistics such as GoAccess read. The client is its address without the port, as a
	// trusted proxy reported it, and the request line is what the client sent:
	//
	//	10.0.0.7 - - [23/Aug/2022:20:28:20 +0000] "GET / HTTP/2.0" 200 5 "https://a.example/" "curl/8.5"
	CommonLog   AccessLogFormat = "common"
	CombinedLog AccessLogFormat = "combined"

	// JSONLog writes one JSON object per line, with the names of linkerd's proxy: client.addr,
	// client.id, host, method, processing_ns, request_bytes, response_bytes, status, timestamp,
	// total_ns, trace_id, uri, user_agent, version. It adds attempts, endpoint, error, route and
	// upstream, if a layer has reported them to the request's [layer.Record], and grpc_status for
	// gRPC. client.addr is the peer of the connection with its port, and client.ip the client, as a
	// trusted proxy reported it. Counts, times in ns and the status are JSON numbers. aborted is
	// true if the client did not get the whole response. Use [JSONLogOf] to select some of them.
	JSONLog AccessLogFormat = "json"
)

// JSONLogOf returns a JSON format with only the given [JSONLog] fields, sorted by name. Without
// fields, it is JSONLog. It panics if a name is not in [JSONLogFields].
func JSONLogOf(fields ...string) AccessLogFormat {
	if len(fields) == 0 {
		return JSONLog
	}
	for _, name := range fields {
		if !slices.Contains(JSONLogFields(), name) {
			panic(fmt.Sprintf("httplayer: JSONLogOf: unknown field %q", name))
		}
	}
	// The chosen names travel in the format itself; formatOf splits them off again.
	return JSONLog + AccessLogFormat(" "+strings.Join(fields, " "))
}

// JSONLogFields returns the names of all [JSONLog] fields.
func JSONLogFields() []string {
	fields := jsonFields()
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// WithAccessLog writes one line per request to output, when its response has ended. The line tells what
// the client got. A [Server] also logs the requests that it refuses by itself. A request never waits for
// the writer: if that is slow, stuck or failing, lines are dropped. You should pass a [LogWriter], to
// flush it at the end and to count these lines; WithAccessLog makes one for any other writer. If the
// writer is nil, nothing is logged. An unknown format means [ApacheLog].
//
//	lines := httplayer.NewLogWriter(os.Stderr, nil)
//	server := httplayer.NewServer(svc, httplayer.WithAccessLog(lines, httplayer.JSONLog, nil))
//
// request_bytes and response_bytes count body bytes; they are missing for a tunnel. processing_ns is the
// time until the response headers, and total_ns the time until the response ends. client.id is what
// clientName returns, or "-" instead of "". If clientName is nil, it is the name in the verified client
// certificate. trace_id is the trace in the [layer.Record], or comes from the first of these headers that
// is present: x-b3-traceid, traceparent, x-request-id, x-amzn-trace-id.
//
// The status is that in a [Report]. Text from clients is escaped, so that it cannot add a line.
func WithAccessLog(output io.Writer, format AccessLogFormat, clientName func(*http.Request) string) HandlerOption {
	if output == nil {
		return func(*handler) {}
	}
	return WithOnResponse(newAccessLog(output, format, clientName).log)
}

// LogWriter is an [io.Writer] for log lines that never waits for its output. It copies the lines
// to a buffer of 1 MiB, from which a goroutine writes them. The goroutine pauses for 1 ms after each
// write, so that a busy program writes many lines at once, and runs only while there are lines. Lines
// are dropped and counted if the buffer is full, and if the output returns an error. Its methods are:
//
//	Write(p)           adds lines; never waits and never fails
//	Flush(ctx)         waits until all lines are written; call it before the program ends
//	SetOutput(output)  writes later lines to output, for example after a rotation
//	Dropped()          returns the number of dropped lines, for a metric
//
// You can use the same one for package slog's handler. A LogWriter does not close its output. It
// is safe for concurrent use.
type LogWriter = logwriter.Writer

// NewLogWriter returns a [LogWriter] that writes to output. Each line is one Write, except that
// several lines can be one Write to an [os.File].
//
// report is called when lines begin to be dropped, with 0 and the reason. It is called again when
// all waiting lines have been written, with the number of dropped lines and nil. A blocked report
// delays no line. Nil means messages to [slog.Default]. A nil output panics.
func NewLogWriter(output io.Writer, report func(dropped int, err error)) *LogWriter {
	if output == nil {
		panic("httplayer: nil writer")
	}
	if report == nil {
		log := slog.Default() //nolint:forbidigo // dropped lines without a message would be a surprise
		report = func(dropped int, err error) { logwriter.Report(log, "access", dropped, err) }
	}
	return logwriter.New(output, report)
}

// newAccessLog returns a log that writes lines to output. A nil clientName means the name in the
// client's certificate.
func newAccessLog(output io.Writer, format AccessLogFormat, clientName func(*http.Request) string) *accessLog {
	log := &accessLog{write: formatOf(format), id: clientName}
	// A LogWriter is used as it is, so that several logs can share one buffer and its goroutine.
	if lines, ok := output.(*LogWriter); ok {
		log.lines = lines
	} else {
		log.lines = NewLogWriter(output, nil)
	}
	if clientName == nil {
		log.id = func(r *http.Request) string { return caller.Client(clientTLS(r)) }
	}
	return log
}

// formatOf returns the function that appends a line in the given format.
func formatOf(format AccessLogFormat) func(b []byte, x *Report, client string) []byte {
	// JSONLogOf adds the chosen fields after a space.
	name, chosen, _ := strings.Cut(string(format), " ")
	switch AccessLogFormat(name) {
	case JSONLog:
		return jsonLine(strings.Fields(chosen))
	case CommonLog:
		return commonLine
	case CombinedLog:
		return combinedLine
	case ApacheLog:
	}
	return apacheLine
}

// accessLog makes a line of each request's Report and writes it, for WithAccessLog.
type accessLog struct {
	write func(b []byte, x *Report, client string) []byte // appends a line, without the line break
	id    func(*http.Request) string                      // returns the name of the client
	lines *LogWriter
	lasts sync.Pool // *[]byte: the last lines, whose memory the next ones use
}

// log writes the line of the request that x describes. Its buffer comes from a pool, so that it usually
// does not allocate.
func (l *accessLog) log(x *Report) {
	line, _ := l.lasts.Get().(*[]byte)
	if line == nil {
		line = new([]byte)
	}
	*line = append(l.write((*line)[:0], x, l.id(x.Request)), '\n')
	_, _ = l.lines.Write(*line)
	l.lasts.Put(line)
}

// apacheLine appends the line for x to b in the format [ApacheLog]. client is the name of the client.
func apacheLine(b []byte, x *Report, client string) []byte {
	r := x.Request
	b = append(plain(b, r.RemoteAddr), ' ')
	b = append(plain(b, client), " - ["...)
	b = append(x.Began.UTC().AppendFormat(b, time.RFC3339Nano), "] \""...)
	b = append(escaped(b, r.Method), ' ')
	target := origin(r)
	b = append(escaped(b, target[:]...), ' ')
	b = append(escaped(b, r.Proto), "\" "...)
	b = append(number(b, int64(x.Status)), ' ')
	// A tunnel has no number of bytes.
	if x.Sent < 0 {
		return append(b, '-')
	}
	return number(b, x.Sent)
}

// commonLine appends the line for x to b in the format [CommonLog].
func commonLine(b []byte, x *Report, client string) []byte {
	r := x.Request
	if client := clientIP(x); client.IsValid() {
		b = client.AppendTo(b)
	} else {
		b = plain(b, r.RemoteAddr)
	}
	b = append(plain(append(b, " - "...), client), " ["...)
	b = append(x.Began.AppendFormat(b, "02/Jan/2006:15:04:05 -0700"), "] \""...)
	if r.Method == "" { // no request line was received
		b = append(b, '-')
	} else {
		b = escaped(b, r.Method, " ", r.RequestURI, " ", r.Proto)
	}
	b = append(number(append(b, "\" "...), int64(x.Status)), ' ')
	// A tunnel has no number of bytes.
	if x.Sent < 0 {
		return append(b, '-')
	}
	return number(b, x.Sent)
}

// combinedLine appends x to b in the combined log format.
func combinedLine(b []byte, x *Report, client string) []byte {
	b = commonLine(b, x, client)
	for _, name := range [...]string{"Referer", "User-Agent"} {
		b = append(escaped(append(b, " \""...), cmp.Or(first(x.Request.Header, name), "-")), '"')
	}
	return b
}

// jsonField is a field of a JSON line. The function append appends its value to b; if it appends
// nothing, the line lacks the field.
type jsonField struct {
	name   string
	append func(b []byte, x *Report, client string) []byte
}

// jsonFields returns all fields of a JSON line, sorted by name.
func jsonFields() []jsonField {
	// Each function gets the line so far, the report and the client's name. If it appends nothing, the line lacks the
	// field.
	return []jsonField{
		{"aborted", func(b []byte, x *Report, _ string) []byte {
			// A refused request got a whole response, although Err has the reason of the refusal.
			if x.Err == nil || x.Refused {
				return b
			}
			return append(b, "true"...)
		}},
		{"attempts", func(b []byte, x *Report, _ string) []byte {
			if x.Facts.Attempts == 0 {
				return b
			}
			return number(b, int64(x.Facts.Attempts))
		}},
		{"client.addr", func(b []byte, x *Report, _ string) []byte { return text(b, x.Request.RemoteAddr) }},
		{"client.id", func(b []byte, _ *Report, client string) []byte { return text(b, cmp.Or(client, "-")) }},
		{"client.ip", func(b []byte, x *Report, _ string) []byte {
			client := clientIP(x)
			if !client.IsValid() {
				return b
			}
			return append(client.AppendTo(append(b, '"')), '"')
		}},
		{"endpoint", func(b []byte, x *Report, _ string) []byte {
			if !x.Facts.Endpoint.IsValid() {
				return b
			}
			return append(x.Facts.Endpoint.AppendTo(append(b, '"')), '"')
		}},
		{"error", func(b []byte, x *Report, _ string) []byte {
			if err := cmp.Or(x.Facts.Err, x.Err); err != nil {
				return text(b, err.Error())
			}
			return b
		}},
		{"grpc_status", func(b []byte, x *Report, _ string) []byte { return present(b, GRPCStatus(x)) }},
		{"host", func(b []byte, x *Report, _ string) []byte { return text(b, HTTP{}.Authority(x.Request)) }},
		{"method", func(b []byte, x *Report, _ string) []byte { return text(b, x.Request.Method) }},
		{"processing_ns", func(b []byte, x *Report, _ string) []byte { return number(b, int64(x.Head.Sub(x.Began))) }},
		{"request_bytes", func(b []byte, x *Report, _ string) []byte { return byteCount(b, x, x.Received) }},
		{"response_bytes", func(b []byte, x *Report, _ string) []byte { return byteCount(b, x, x.Sent) }},
		{"route", func(b []byte, x *Report, _ string) []byte { return present(b, cmp.Or(x.Facts.Route, x.Facts.Pattern)) }},
		{"status", func(b []byte, x *Report, _ string) []byte { return number(b, int64(x.Status)) }},
		{"timestamp", func(b []byte, x *Report, _ string) []byte {
			return append(x.Began.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
		}},
		{"total_ns", func(b []byte, x *Report, _ string) []byte { return number(b, int64(x.Ended.Sub(x.Began))) }},
		{"trace_id", func(b []byte, x *Report, _ string) []byte {
			return text(b, cmp.Or(x.Facts.Trace, traceOf(x.Request.Header)))
		}},
		{"upstream", func(b []byte, x *Report, _ string) []byte { return present(b, x.Facts.Target) }},
		{"uri", func(b []byte, x *Report, _ string) []byte { target := origin(x.Request); return text(b, target[:]...) }},
		{"user_agent", func(b []byte, x *Report, _ string) []byte { return text(b, first(x.Request.Header, "User-Agent")) }},
		{"version", func(b []byte, x *Report, _ string) []byte { return text(b, x.Request.Proto) }},
	}
}

// clientIP returns the address of the client, as a trusted proxy reported it, or else that of the peer.
func clientIP(x *Report) netip.Addr {
	if x.Facts.Client.IsValid() {
		return x.Facts.Client
	}
	return HTTP{}.Source(x.Request).Addr().WithZone("")
}

// present appends s as a JSON string, or nothing if s is empty.
func present(b []byte, s string) []byte {
	if s == "" {
		return b
	}
	return text(b, s)
}

// byteCount appends the number n of bytes, or nothing for a tunnel.
func byteCount(b []byte, x *Report, n int64) []byte {
	if x.Sent < 0 {
		return b
	}
	return number(b, n)
}

// jsonLine returns the function that writes a request's line in the format [JSONLog], with the chosen
// fields, or with all if none is chosen.
func jsonLine(chosen []string) func(b []byte, x *Report, client string) []byte {
	fields := jsonFields()
	if len(chosen) > 0 {
		fields = slices.DeleteFunc(fields, func(f jsonField) bool { return !slices.Contains(chosen, f.name) })
	}
	// The quoted keys are made once, and not for each line.
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = `"` + f.name + `":`
	}
	return func(b []byte, x *Report, client string) []byte {
		b = append(b, '{')
		for i := range fields {
			start := len(b)
			b = append(b, keys[i]...)
			valueStart := len(b)
			if b = fields[i].append(b, x, client); len(b) == valueStart {
				b = b[:start] // the request lacks the field, so the name is removed
				continue
			}
			b = append(b, ',')
		}
		// The comma after the last value must go.
		return append(bytes.TrimSuffix(b, []byte{','}), '}')
	}
}

// GRPCStatus returns the gRPC status of x, such as "14", or "" if there is none. If the client has left,
// it is "1" for a gRPC request.
func GRPCStatus(x *Report) string {
	switch {
	case !isGRPC(x.Request):
		return ""
	case x.Status == StatusClientClosedRequest:
		return strconv.Itoa(grpcCanceled)
	case x.Response == nil:
		return ""
	}
	return cmp.Or(first(x.Response.Trailer, "Grpc-Status"), first(x.Response.Header, "Grpc-Status"))
}

// number appends n to b in decimal.
func number(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// origin returns r's absolute URL in parts, which saves joining them. If the request target is a path,
// as usual, it is preceded by the scheme and the host.
func origin(r *http.Request) [4]string {
	var a HTTP
	if strings.HasPrefix(r.RequestURI, "/") {
		return [4]string{a.Scheme(r), "://", a.Authority(r), r.RequestURI}
	}
	return [4]string{r.RequestURI}
}

// traceOf returns the trace ID in h, or "" without one. It uses the first of these headers that
// contains an ID: X-B3-Traceid, Traceparent ("version-ID-parent-flags"), X-Request-ID, X-Amzn-Trace-Id.
func traceOf(h http.Header) string {
	_, parent, _ := strings.Cut(first(h, "Traceparent"), "-")
	parent, rest, _ := strings.Cut(parent, "-")
	if !strings.Contains(rest, "-") {
		parent = "" // not in that form
	}
	return cmp.Or(first(h, "X-B3-Traceid"), parent, first(h, "X-Request-Id"), first(h, "X-Amzn-Trace-Id"))
}

const hexDigits = "0123456789abcdef"

// plain appends s as a word for a line whose fields are separated by spaces: with Apache's escapes,
// with "_" for each space, and "-" if s is empty.
func plain(b []byte, s string) []byte {
	return escaped(b, strings.ReplaceAll(cmp.Or(s, "-"), " ", "_"))
}

// escaped appends parts with Apache's escapes. The result contains no unescaped quote and no line
// break.
func escaped(b []byte, parts ...string) []byte {
	for _, s := range parts {
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
	}
	return b
}

// text appends parts as one JSON string. It escapes all control characters, and replaces invalid
// UTF-8.
func text(b []byte, parts ...string) []byte {
	b = append(b, '"')
	for _, s := range parts {
		plain := 0 // length of the prefix that needs no escapes, usually all of s
		for plain < len(s) && s[plain] >= ' ' && s[plain] < 0x7f && s[plain] != '"' && s[plain] != '\\' {
			plain++
		}
		b = append(b, s[:plain]...)
		for _, r := range s[plain:] {
			switch {
			case r == '"' || r == '\\':
				b = append(b, '\\', byte(r))
			// Control characters, the two line separators of Unicode, and bytes that are not UTF-8.
			case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == utf8.RuneError:
				b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			default:
				b = utf8.AppendRune(b, r)
			}
		}
	}
	return append(b, '"')
}
