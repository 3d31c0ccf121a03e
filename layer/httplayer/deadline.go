package httplayer

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

const grpcTimeoutField = "Grpc-Timeout"

// GRPCTimeout returns the value of the header grpc-timeout, which is the time that remains
// for the request. It returns false if the header is missing or malformed. The server behind
// this process may still reject a request with a malformed header. A value that is too large
// for a [time.Duration] becomes the largest Duration. Use it with
// [layer.DeadlineFromRequest].
func GRPCTimeout(req *http.Request) (time.Duration, bool) {
	return parseGRPCTimeout(first(req.Header, grpcTimeoutField))
}

// SetGRPCTimeout returns a shallow copy of req with its own header map, in which grpc-timeout is
// the duration in the argument left. A value of grpc-timeout has at most 8 digits and a unit, so
// that long durations are rounded down. A negative duration becomes 0. Use it with
// [layer.DeadlineToRequest].
func SetGRPCTimeout(req *http.Request, left time.Duration) *http.Request {
	out := fork(req)
	out.Header[grpcTimeoutField] = []string{formatGRPCTimeout(max(left, 0))}
	return out
}

// DeadlineFromHeader returns a function for [layer.DeadlineFromRequest]. That function returns the
// remaining time in the first value of the header field with the given name. The format is that of
// [time.ParseDuration], such as "1.5s". The function returns false if the field is missing or
// malformed.
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

// grpcUnits has the units of grpc-timeout, from the smallest.
var grpcUnits = [...]struct { //nolint:gochecknoglobals // a table
	letter byte
	unit   time.Duration
}{
	{'n', time.Nanosecond}, {'u', time.Microsecond}, {'m', time.Millisecond}, {'S', time.Second}, {'M', time.Minute}, {'H', time.Hour},
}

// formatGRPCTimeout formats d for the header grpc-timeout, such as "1500000u" for 1.5 s. It uses
// the smallest unit in which d has at most 8 digits, and rounds down.
func formatGRPCTimeout(d time.Duration) string {
	i := 0
	for d/grpcUnits[i].unit > 99_999_999 {
		i++
	}
	return strconv.FormatInt(int64(d/grpcUnits[i].unit), 10) + string(grpcUnits[i].letter)
}

// parseGRPCTimeout parses a value of grpc-timeout: up to 8 digits and a unit. It returns false
// if the value is malformed.
func parseGRPCTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 63)
	for _, u := range grpcUnits {
		if err != nil || u.letter != s[len(s)-1] {
			continue
		}
		if n > uint64(math.MaxInt64/u.unit) {
			return math.MaxInt64, true
		}
		return time.Duration(n) * u.unit, true
	}
	return 0, false
}
