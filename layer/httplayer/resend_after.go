package httplayer

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

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
