package httplayer

import (
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
)

// Replayer is the [layer.Replayer] of net/http. [NewStack] gives it to the layers
// of a stack; the zero value is ready to use, and it is safe for concurrent
// use.
type Replayer struct{}

var _ layer.Replayer[*http.Request, *http.Response] = Replayer{}

// Idempotent reports whether the method of req is one of RFC 9110, section
// 9.2.2 (GET, HEAD, OPTIONS, TRACE, PUT, DELETE; an empty one is GET), or req
// carries an Idempotency-Key or X-Idempotency-Key, with or without a value, as
// [http.Transport] has it. A gRPC call is a POST: whether it can be sent twice
// the policy of a retry has to say.
func (Replayer) Idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, private := req.Header["X-Idempotency-Key"]
	return key || private
}

// Replay returns what sends req more than once: nil if it has no body; its
// GetBody if it has one, which costs no memory here; else a
// [layer.ReplayBody] of up to limit bytes.
//
// Some requests are sent once, whatever becomes of them, and nothing of their
// bodies is kept: those that say in Content-Length that they are above the
// limit, that wait for 100 Continue, that upgrade their connection, and
// CONNECT. Every other try is a shallow copy of req without GetBody, so that no
// [http.Transport] below sends it again by itself.
func (Replayer) Replay(req *http.Request, limit int64) layer.Replay[*http.Request] {
	switch {
	case isTunnel(req):
		return sentOnce{}
	case req.Body == nil || req.Body == http.NoBody:
		return nil
	case len(req.Header["Expect"]) > 0:
		return sentOnce{}
	case req.GetBody != nil:
		return &gotAgain{try: tryOf(req)}
	case req.ContentLength > max(limit, 0):
		return sentOnce{}
	}
	return keptBody{layer.ReplayBody(req.Body, limit), tryOf(req)}
}

// isTunnel reports whether req asks for its connection to become something
// else.
func isTunnel(req *http.Request) bool {
	return req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0
}

// RetryAfter returns what rsp asks for in Retry-After, if its status is 429 or 503:
// seconds, or a date, which in the past means now. A redirection says there
// how long to wait before another request, so it says nothing here. Of gRPC it
// returns grpc-retry-pushback-ms, from the header of a response that is
// nothing but trailers, or from the trailers if they have come; one that is
// negative, no number, or said twice asks not to retry, as in gRFC A6. The
// longer of the two wins. Of an error it is [layer.RetryAfter].
func (Replayer) RetryAfter(rsp *http.Response, err error) (time.Duration, bool) {
	if err != nil || rsp == nil {
		return layer.RetryAfter(err)
	}
	values := rsp.Header["Grpc-Retry-Pushback-Ms"]
	if len(values) == 0 {
		values = rsp.Trailer["Grpc-Retry-Pushback-Ms"]
	}
	pushed, push := pushback(values)
	if rsp.StatusCode != http.StatusTooManyRequests && rsp.StatusCode != http.StatusServiceUnavailable {
		return pushed, push
	}
	after, ok := retryAfter(rsp.Header.Get("Retry-After"), time.Now())
	switch {
	case !ok || push && pushed < 0:
		return pushed, push
	default:
		return max(after, pushed), true
	}
}

// Drain closes rsp; what little is left of its body is read before that, see
// [layer.DrainBody], so that an HTTP/1.1 connection can be used again and no
// HTTP/2 stream has to be reset. A body that stays silent, or is known to be
// long, is not waited for.
func (Replayer) Drain(rsp *http.Response) {
	switch {
	case rsp == nil || rsp.Body == nil:
	case ended(rsp), rsp.StatusCode == http.StatusSwitchingProtocols, rsp.ContentLength > worthReading:
		_ = rsp.Body.Close()
	default:
		layer.DrainBody(rsp.Body)
	}
}

// worthReading is how long a body may be to be read for the sake of its
// connection: as much as DiscardBody would.
const worthReading = 8 << 10

// sentOnce is the Replay of a request that is not to be touched.
type sentOnce struct{}

func (sentOnce) Next() (*http.Request, bool) { return nil, false }
func (sentOnce) Retire()                     {}
func (sentOnce) Whole() bool                 { return false }
func (sentOnce) End()                        {}
func (sentOnce) Close() error                { return nil }

// keptBody is the Replay of a request with a body that can be read once.
type keptBody struct {
	*layer.BodyReplay
	try try
}

func (k keptBody) Next() (*http.Request, bool) {
	body, ok := k.BodyReplay.Next()
	if !ok {
		return nil, false
	}
	return k.try.carrying(body), true
}

// gotAgain is the Replay of a request with a GetBody.
type gotAgain struct {
	try try

	mu     sync.Mutex
	sent   bool
	last   io.Closer // the body of the newest try
	before io.Closer // that of the one before; nil if it was closed, or there was none
}

func (g *gotAgain) Next() (*http.Request, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.sent {
		g.sent, g.last = true, g.try.req.Body
		return g.try.carrying(g.try.req.Body), true
	}
	body, err := g.try.req.GetBody()
	if err != nil {
		return nil, false
	}
	g.before, g.last = g.last, body
	return g.try.carrying(body), true
}

// Retire is called before the newest try is sent: the one before may have failed
// without taking its body, and nobody else will close that.
func (g *gotAgain) Retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.before != nil {
		_ = g.before.Close()
		g.before = nil
	}
}

func (g *gotAgain) Whole() bool { return true }

func (g *gotAgain) End() {}

// Close is called when the newest try was refused, and nobody else will close
// its body.
func (g *gotAgain) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		return nil
	}
	return g.last.Close()
}

// try is what every try of a request is made of. The trailers of each are its
// own: those of req come while another try may still be reading the body.
type try struct {
	req       *http.Request
	announced []string // trailers
}

func tryOf(req *http.Request) try {
	if len(req.Trailer) == 0 {
		return try{req: req}
	}
	return try{req: req, announced: slices.Collect(maps.Keys(req.Trailer))}
}

func (t try) carrying(body io.ReadCloser) *http.Request {
	out := t.req.WithContext(t.req.Context())
	out.Body, out.GetBody = body, nil
	if len(t.announced) > 0 {
		out.Trailer = make(http.Header, len(t.announced))
		for _, name := range t.announced {
			out.Trailer[name] = nil
		}
		out.Body = &untrailed{ReadCloser: body, came: t.req.Trailer, left: out.Trailer}
	}
	return out
}

// retryAfter reads Retry-After: RFC 9110, section 10.2.3. What is too long for
// a Duration is the longest there is.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if isDigits(value) {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(date.Sub(now), 0), true
}

// isDigits keeps out what strconv would take for a number beside that: signs.
func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// pushback reads grpc-retry-pushback-ms: see gRFC A6, "Pushback". It is less
// than 0 for one that asks not to retry.
func pushback(values []string) (time.Duration, bool) {
	switch len(values) {
	case 0:
		return 0, false
	case 1:
		if ms, err := strconv.ParseInt(values[0], 10, 32); err == nil && ms >= 0 {
			return time.Duration(ms) * time.Millisecond, true
		}
	}
	return -1, true
}

// askAfter tells a client when to come back: HTTP in whole seconds, gRPC in
// milliseconds, both rounded up.
func askAfter(h http.Header, after time.Duration, grpc bool) {
	if grpc {
		h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(min(ceil(after, time.Millisecond), math.MaxInt32), 10))
	} else {
		h.Set("Retry-After", strconv.FormatInt(ceil(after, time.Second), 10))
	}
}

func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
