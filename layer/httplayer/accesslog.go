package httplayer

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer/tcplayer"
)

// AccessLogFormat is how a line of an access log reads.
type AccessLogFormat string

// The formats are those of linkerd's proxy.
const (
	// ApacheLog is Apache's common log format, with the time in RFC 3339:
	//
	//	10.0.0.7:51160 web.default.serviceaccount.identity - [2022-08-23T20:28:20.071809491Z] "GET http://api:80/ HTTP/2.0" 200 5
	ApacheLog AccessLogFormat = "apache"

	// JSONLog is an object a line: client.addr, client.id, host, method,
	// processing_ns, request_bytes, response_bytes, status, timestamp, total_ns,
	// trace_id, uri, user_agent, version. All are strings but status.
	JSONLog AccessLogFormat = "json"
)

// AccessLog writes a line for each request to the writer, when its response is over: one
// Write for each, never two at a time. With a nil writer the handler is returned as
// it is. Put it outermost, so that it sees what clients see. An answer that
// net/http itself gives (400, 431) never comes here.
//
//	handler := httplayer.AccessLog(os.Stderr, httplayer.JSONLog)(httplayer.Handler(svc))
//
// Lengths are those of bodies, counted as they pass; of a connection that was
// hijacked they are not known, and its status is what it must have been: 200 of
// CONNECT, else 101. total_ns is the time until the response was over,
// processing_ns that until its header was there. The client's identity is that
// of its certificate (see [WithClientName]). The trace is that of the
// x-b3-traceid field, of traceparent, x-request-id or x-amzn-trace-id.
//
// What clients say is escaped: a line is always one line, and a quoted field one
// field. Requests wait for the writer: give it a buffer if it can be slow.
//
// A format that is neither of the two is [ApacheLog].
//
// It costs 5 to 7 allocations, about 300 bytes, a request.
func AccessLog(to io.Writer, format AccessLogFormat, opts ...AccessLogOption) func(http.Handler) http.Handler {
	log := &accessLog{to: to, write: (*accessEntry).apache, id: peerID}
	if format == JSONLog {
		log.write = (*accessEntry).json
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(log)
		}
	}
	return func(h http.Handler) http.Handler {
		if h == nil {
			panic("httplayer: nil handler")
		}
		if to == nil {
			return h
		}
		return &logged{log: log, handler: h}
	}
}

// AccessLogOption sets what an [AccessLog] tells.
type AccessLogOption interface{ apply(l *accessLog) }

type accessLogOption func(*accessLog)

func (f accessLogOption) apply(l *accessLog) { f(l) }

// WithClientName says who the client of a request is, "" for nobody known. The
// default is the name that the client proved by a verified certificate, to
// crypto/tls below a [Server] or to net/http: the client_id of
// [Accessor.SourceLabels]. With a nil id no client is known.
func WithClientName(id func(r *http.Request) string) AccessLogOption {
	if id == nil {
		id = func(*http.Request) string { return "" }
	}
	return accessLogOption(func(l *accessLog) { l.id = id })
}

type accessLog struct {
	write func(e *accessEntry, b []byte) []byte
	id    func(*http.Request) string

	mu   sync.Mutex
	to   io.Writer
	line []byte // of which the room is used again
}

func (l *accessLog) say(e *accessEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = append(l.write(e, l.line[:0]), '\n')
	_, _ = l.to.Write(l.line) // whom would it tell?
	if cap(l.line) > mostLine {
		l.line = nil
	}
}

// mostLine is how large a line may be whose room is kept.
const mostLine = 16 << 10

type logged struct {
	log     *accessLog
	handler http.Handler
}

func (h *logged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, w := serving(w, r)
	e := &accessEntry{request: r, exchange: x, began: time.Now(), id: h.log.id(r)}
	x.hear = append(x.hear, hearer{e.begun, e.wrote})
	if r.Body != nil && r.Body != http.NoBody {
		own := r.WithContext(r.Context()) // the server looks at its own
		own.Body = &weighed{ReadCloser: r.Body, read: &e.read}
		defer handBack(r, own)
		r = own
	}
	defer func() {
		e.ended = time.Now()
		h.log.say(e)
	}()
	h.handler.ServeHTTP(w, r)
}

// accessEntry is one request.
type accessEntry struct {
	request            *http.Request
	exchange           *served
	id                 string
	began, head, ended time.Time
	read, written      atomic.Int64 // handlers may read and write in goroutines of their own
}

func (e *accessEntry) begun(*http.Response) { e.head = time.Now() }

func (e *accessEntry) wrote(n int, _ []byte) { e.written.Add(int64(n)) }

func (e *accessEntry) status() int { return e.exchange.code() }

// weighed is a request body that is counted.
type weighed struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b *weighed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

// peerID is the name that the client proved.
func peerID(r *http.Request) string {
	state := r.TLS
	if conn := ConnFromContext(r.Context()); conn != nil && state == nil {
		if s, ok := tcplayer.TLSState(conn); ok {
			state = &s
		}
	}
	return caller.Client(state)
}

// hostOf is the host that the request says it is for.
func hostOf(r *http.Request) string {
	if r.Host != "" || r.URL == nil {
		return r.Host
	}
	return r.URL.Host
}
