package httplayer

import (
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// Replayer is the [layer.Replayer] of net/http. [NewStack] passes it to the
// layers of a stack. The zero value is ready to use, and it is safe for
// concurrent use.
type Replayer struct{}

var _ layer.Replayer[*http.Request, *http.Response] = Replayer{}

// Idempotent reports whether the method of req is idempotent (RFC 9110, section
// 9.2.2; "" is GET), or req has an Idempotency-Key or X-Idempotency-Key header,
// as in [http.Transport]. A gRPC call is a POST, so the policy of a retry must
// decide.
func (Replayer) Idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, private := req.Header["X-Idempotency-Key"]
	return key || private
}

// Replay returns nil if req has no body, and otherwise a [layer.ReplayBody] with
// its GetBody, if set, or with up to limit bytes.
//
// It does not repeat a request with a Content-Length above the limit, with
// Expect: 100-continue, with an upgrade, or CONNECT. Each copy is shallow and
// has no GetBody, so that no [http.Transport] below repeats it.
func (Replayer) Replay(req *http.Request, limit int64) layer.Replay[*http.Request] {
	switch {
	case isTunnel(req):
		return sentOnce{}
	case req.Body == nil || req.Body == http.NoBody:
		return nil
	case len(req.Header["Expect"]) > 0:
		return sentOnce{}
	case req.GetBody == nil && req.ContentLength > max(limit, 0):
		return sentOnce{}
	}
	return keptBody{layer.ReplayBody(req.Body, req.GetBody, limit), tryOf(req)}
}

// isTunnel reports whether req is CONNECT or an upgrade.
func isTunnel(req *http.Request) bool {
	return req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0
}

// RetryAfter returns the Retry-After of a 429 or 503 response: seconds, or a
// date, which is 0 in the past. For gRPC it returns grpc-retry-pushback-ms from
// the headers of a trailers-only response, or from the received trailers. A
// negative, malformed or repeated value forbids a retry (gRFC A6). The longer
// of both applies. For an error it is [layer.RetryAfter].
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

// Drain closes rsp. It first reads a short rest of the body, see
// [layer.DrainBody], so that an HTTP/1.1 connection can be reused and an HTTP/2
// stream is not reset.
func (Replayer) Drain(rsp *http.Response) {
	switch {
	case rsp == nil || rsp.Body == nil:
	case ended(rsp), rsp.StatusCode == http.StatusSwitchingProtocols, rsp.ContentLength > worthReading:
		_ = rsp.Body.Close()
	default:
		layer.DrainBody(rsp.Body)
	}
}

// worthReading is the maximum length of a body that is read to reuse its
// connection.
const worthReading = 8 << 10

// sentOnce is the [layer.Replay] of a request that is sent only once.
type sentOnce struct{}

func (sentOnce) Next() (*http.Request, bool) { return nil, false }
func (sentOnce) Whole() bool                 { return false }
func (sentOnce) End()                        {}

// keptBody is the Replay of a request with a body.
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

// try makes the attempts of a request. Each attempt has its own trailers,
// because another attempt may still read the body when those of req arrive.
type try struct {
	req       *http.Request
	announced []string // names of the announced trailers
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
		out.Body = &trailerFilter{ReadCloser: body, came: t.req.Trailer, left: out.Trailer}
	}
	return out
}

// retryAfter parses Retry-After (RFC 9110, section 10.2.3). A value beyond a
// Duration is the maximum.
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

// isDigits rejects signs, which strconv accepts.
func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// pushback parses grpc-retry-pushback-ms (gRFC A6, "Pushback"). A negative
// result forbids a retry.
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

// askAfter sets Retry-After in seconds, or the gRPC header in milliseconds,
// both rounded up.
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
