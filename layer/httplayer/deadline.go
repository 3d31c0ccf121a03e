package httplayer

import (
	"net/http"
	"strconv"
	"time"
)

const grpcTimeoutField = "Grpc-Timeout"

// GRPCTimeout returns the value of the header grpc-timeout, which is the time that remains
// for the request. Use it with [layer.DeadlineFromRequest]. GRPCTimeout returns false
// without the header. A malformed value counts as absent, because the server behind this
// process may reject the request for it. A value that is too large for a [time.Duration]
// becomes the largest Duration.
func GRPCTimeout(req *http.Request) (time.Duration, bool) {
	return parseGRPCTimeout(first(req.Header, grpcTimeoutField))
}

// SetGRPCTimeout returns a shallow copy of req with its own header map. In the copy, the
// header grpc-timeout has the duration in the argument left, rounded down to at most 8
// digits of a unit. A negative duration becomes 0. Use it with [layer.DeadlineToRequest].
func SetGRPCTimeout(req *http.Request, left time.Duration) *http.Request {
	out := fork(req)
	out.Header[grpcTimeoutField] = []string{formatGRPCTimeout(max(left, 0))}
	return out
}

// DeadlineFromHeader returns a function for [layer.DeadlineFromRequest]. The function reads
// the remaining time from the first value of the header field name, in the format of
// [time.ParseDuration], such as "1.5s". It returns false without the field. A malformed
// value counts as absent, as in [GRPCTimeout].
func DeadlineFromHeader(name string) func(*http.Request) (time.Duration, bool) {
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request) (time.Duration, bool) {
		left, err := time.ParseDuration(first(req.Header, name))
		return left, err == nil
	}
}

// DeadlineToHeader returns a function for [layer.DeadlineToRequest]. The function returns a
// shallow copy of the request with its own header map. In the copy, the header field with
// the given name has the remaining time in the format of [time.Duration.String].
func DeadlineToHeader(name string) func(*http.Request, time.Duration) *http.Request {
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request, left time.Duration) *http.Request {
		out := fork(req)
		out.Header[name] = []string{max(left, 0).String()}
		return out
	}
}

// formatGRPCTimeout formats d for the header grpc-timeout. It uses the smallest unit in
// which d has at most 8 digits, and rounds down.
func formatGRPCTimeout(d time.Duration) string {
	unit, name := time.Nanosecond, "n"
	for _, larger := range [...]struct {
		unit time.Duration
		name string
	}{{time.Microsecond, "u"}, {time.Millisecond, "m"}, {time.Second, "S"}, {time.Minute, "M"}, {time.Hour, "H"}} {
		if d/unit <= maxGRPCTimeout {
			break
		}
		unit, name = larger.unit, larger.name
	}
	return strconv.FormatInt(int64(d/unit), 10) + name
}

const maxGRPCTimeout = 99_999_999
