package httplayer

import (
	"math"
	"net/http"
	"net/textproto"
	"strconv"
	"time"
)

// DeadlineFormat is the format of a header with the remaining time of a
// request.
type DeadlineFormat uint8

// The formats of [DeadlineFromHeader] and [DeadlineToHeader].
const (
	// DeadlineGRPC is the format of grpc-timeout: up to 8 digits and one of the
	// units H, M, S, m, u, n (hours to nanoseconds). See gRPC's
	// PROTOCOL-HTTP2.md, "Requests".
	DeadlineGRPC DeadlineFormat = iota

	// DeadlineDuration is the format of [time.ParseDuration]: "1.5s", "300ms".
	// It also reads linkerd's l5d-timeout.
	DeadlineDuration

	// DeadlineMillis is a whole number of milliseconds.
	DeadlineMillis
)

// GRPCTimeout is the header of gRPC deadlines, in [DeadlineGRPC] format.
const GRPCTimeout = "Grpc-Timeout"

// DeadlineFromHeader returns a function for [layer.DeadlineFromRequest] that
// reads the remaining time from the first value of a header. A malformed value
// counts as absent, because the server that it is meant for may reject it. A
// value beyond [time.Duration] is the maximum.
func DeadlineFromHeader(header string, f DeadlineFormat) func(*http.Request) (time.Duration, bool) {
	header = textproto.CanonicalMIMEHeaderKey(header)
	parse := f.parse()
	return func(r *http.Request) (time.Duration, bool) {
		values := r.Header[header]
		if len(values) == 0 {
			return 0, false
		}
		return parse(values[0])
	}
}

// DeadlineToHeader returns a function for [layer.DeadlineToRequest] that sets a
// header to the remaining time. It returns a shallow copy of the request with
// its own header map. The time is rounded down, so less than a millisecond is 0
// in [DeadlineMillis].
func DeadlineToHeader(header string, f DeadlineFormat) func(*http.Request, time.Duration) *http.Request {
	header = textproto.CanonicalMIMEHeaderKey(header)
	format := f.format()
	return func(r *http.Request, left time.Duration) *http.Request {
		out := r.WithContext(r.Context())
		if out.Header = r.Header.Clone(); out.Header == nil {
			out.Header = make(http.Header, 1)
		}
		out.Header[header] = []string{format(max(left, 0))}
		return out
	}
}

func (f DeadlineFormat) parse() func(string) (time.Duration, bool) {
	switch f {
	case DeadlineDuration:
		return func(s string) (time.Duration, bool) {
			d, err := time.ParseDuration(s)
			return d, err == nil
		}
	case DeadlineMillis:
		return parseMillis
	default:
		return grpcTimeout
	}
}

func (f DeadlineFormat) format() func(time.Duration) string {
	switch f {
	case DeadlineDuration:
		return time.Duration.String
	case DeadlineMillis:
		return func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	default:
		return formatGRPCTimeout
	}
}

func parseMillis(s string) (time.Duration, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, false
	}
	if n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, true
	}
	return time.Duration(max(n, 0)) * time.Millisecond, true
}

// formatGRPCTimeout uses the smallest unit that needs at most 8 digits.
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
