package httplayer

import (
	"math"
	"net/http"
	"net/textproto"
	"strconv"
	"time"
)

// DeadlineFormat is how a header says how much time is left for a request.
type DeadlineFormat uint8

// The formats of [DeadlineFromHeader] and [DeadlineToHeader].
const (
	// DeadlineGRPC is that of grpc-timeout: up to 8 digits and a unit, which
	// is H, M, S, m, u or n for hours to nanoseconds. See gRPC's
	// PROTOCOL-HTTP2.md, "Requests".
	DeadlineGRPC DeadlineFormat = iota

	// DeadlineDuration is that of [time.ParseDuration]: "1.5s", "300ms".
	// Linkerd's l5d-timeout is read as it is.
	DeadlineDuration

	// DeadlineMillis is a whole number of milliseconds.
	DeadlineMillis
)

// GRPCTimeout is the header of gRPC's own deadlines, in [DeadlineGRPC].
const GRPCTimeout = "Grpc-Timeout"

// DeadlineFromHeader returns a function for [layer.DeadlineFromRequest] that reads the time
// left from a header; the first, if it is there several times. A value that is
// not of the format counts as absent: whoever it is meant for may refuse it,
// as gRPC's servers do, and a proxy need not know better. A value that is too
// large for a [time.Duration] is the largest one.
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

// DeadlineToHeader returns a function for [layer.DeadlineToRequest] that writes the
// time left into a header, in place of what was there. It returns a shallow
// copy of the request with a header of its own. The time is rounded down to
// what the format can say, so that no deadline is extended on its way: less
// than a millisecond is 0 in [DeadlineMillis], which is over.
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

// formatGRPCTimeout takes the smallest unit of which 8 digits are enough.
// Hours always are.
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
