package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// isGRPC reports whether r is a received request that expects a gRPC status: its content type is
// gRPC and it came over HTTP/2.
func isGRPC(r *http.Request) bool { return r.ProtoMajor == 2 && hasGRPCType(r) }

const grpcType = "application/grpc"

// hasGRPCType reports whether r's content type is gRPC or gRPC-Web.
func hasGRPCType(r *http.Request) bool {
	return strings.HasPrefix(first(r.Header, "Content-Type"), grpcType)
}

// needsHTTP2 reports whether r's content type is gRPC. gRPC-Web may use HTTP/1.1.
func needsHTTP2(r *http.Request) bool {
	return hasGRPCType(r) && !strings.HasPrefix(first(r.Header, "Content-Type"), grpcType+"-web")
}

// isConnectRPC reports whether r is a Connect request. Some streams in that protocol need HTTP/2.
func isConnectRPC(r *http.Request) bool {
	return first(r.Header, "Connect-Protocol-Version") != "" ||
		strings.HasPrefix(first(r.Header, "Content-Type"), "application/connect+") ||
		r.Method == http.MethodGet && r.URL != nil && strings.Contains(r.URL.RawQuery, "connect=v1")
}

// setStatus sets the gRPC status code in headers or trailers. It also sets the message,
// unless that is empty.
func setStatus(h http.Header, code uint32, message string) {
	h.Set("Grpc-Status", strconv.FormatUint(uint64(code), 10))
	if message != "" {
		h.Set("Grpc-Message", percentEncode(message))
	}
}

// percentEncode encodes s for grpc-message, as gRPC's PROTOCOL-HTTP2.md specifies: % and
// bytes outside printable ASCII become %XX.
func percentEncode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// grpcBody is the body of a gRPC response. If reading from the endpoint fails, the client should still
// get a gRPC status. grpcBody therefore ends with io.EOF then, and puts the status into the trailers.
// If resets is true, a stream reset by the endpoint is returned as an error instead, and the client's
// stream is reset, too.
type grpcBody struct {
	wrappedBody
	req     *http.Request
	rsp     *http.Response
	began   time.Time
	informs bool // grpc-message has the text of the error
	resets  bool // Read returns a stream reset as an error, so that the stream of the client is reset
}

// Read reads from the body. If the response breaks off, it ends it with a trailer that has a gRPC
// status, so that a client gets a reason.
func (b *grpcBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF { //nolint:errorlint // a Reader returns exactly this value
		return n, err
	}
	err = overdue(b.req, b.began, err)
	if b.resets && isPassedReset(b.req, err) {
		return n, err
	}
	_, code := StatusFromError(err)
	// The endpoint broke off the response, which is no fault of this process.
	if _, reset := asReset(err); code == grpcInternal && !reset {
		code = grpcUnavailable // the peer ended the response
	}
	text := ""
	if b.informs {
		text = "the response broke off: " + err.Error()
	}
	trailer := make(http.Header, 2)
	setStatus(trailer, code, text)
	b.rsp.Trailer = trailer
	return n, io.EOF
}

// overdue recognizes a call that the server has ended because its grpc-timeout has passed: gRPC servers
// then reset the stream with CANCEL. If err is such a reset, and at least the timeout has passed since
// began, overdue returns err combined with context.DeadlineExceeded. Otherwise it returns err.
func overdue(req *http.Request, began time.Time, err error) error {
	reset, ok := errors.AsType[*message.ResetError](err)
	if !ok || reset.Code != message.CodeCancel {
		return err
	}
	timeout, ok := GRPCTimeout(req)
	if !ok || time.Since(began) < timeout {
		return err
	}
	return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
}

const grpcTimeoutField = "Grpc-Timeout"

// GRPCTimeout returns the value of the header grpc-timeout, which is the time that remains for
// the request. It returns false if the header is missing or malformed. The server behind this
// process may still reject a request with a malformed header. A value that is too large for a
// [time.Duration] becomes the largest Duration. The function GRPCTimeout is usually passed to
// [layer.DeadlineFromRequest].
func GRPCTimeout(req *http.Request) (time.Duration, bool) {
	return parseGRPCTimeout(first(req.Header, grpcTimeoutField))
}

// SetGRPCTimeout returns a shallow copy of req with its own header map, in which grpc-timeout is
// left. A value consists of at most 8 digits and a unit, so that long durations are rounded down.
// A negative duration becomes 0. The function SetGRPCTimeout is usually passed to
// [layer.DeadlineToRequest].
func SetGRPCTimeout(req *http.Request, left time.Duration) *http.Request {
	out := fork(req)
	out.Header[grpcTimeoutField] = []string{formatGRPCTimeout(max(left, 0))}
	return out
}

// DeadlineFromHeader returns a function for [layer.DeadlineFromRequest], which reads the remaining
// time from the first value of the given header field. The format is that of [time.ParseDuration],
// such as "1.5s". If the field is missing or malformed, there is no deadline.
func DeadlineFromHeader(name string) func(*http.Request) (time.Duration, bool) {
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request) (time.Duration, bool) {
		left, err := time.ParseDuration(first(req.Header, name))
		return left, err == nil
	}
}

// DeadlineToHeader returns a function for [layer.DeadlineToRequest], which returns a shallow copy
// of the request with its own header map. In the copy, the given header field tells the remaining
// time as [time.Duration.String] formats it.
func DeadlineToHeader(name string) func(*http.Request, time.Duration) *http.Request {
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request, left time.Duration) *http.Request {
		out := fork(req)
		out.Header[name] = []string{max(left, 0).String()}
		return out
	}
}

// grpcUnits lists the units in grpc-timeout, from the smallest.
var grpcUnits = [...]struct { //nolint:gochecknoglobals // a table
	letter byte
	unit   time.Duration
}{
	{'n', time.Nanosecond}, {'u', time.Microsecond}, {'m', time.Millisecond}, {'S', time.Second}, {'M', time.Minute}, {'H', time.Hour},
}

// formatGRPCTimeout formats d for the header grpc-timeout, such as "1500000u" for 1.5 s. It uses
// the smallest unit in which 8 digits are enough for d, and rounds down.
func formatGRPCTimeout(d time.Duration) string {
	i := 0
	// It ends at the latest at hours, of which 8 digits hold any Duration.
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
		// Too long for a Duration, which means practically no limit.
		if n > uint64(math.MaxInt64/u.unit) {
			return math.MaxInt64, true
		}
		return time.Duration(n) * u.unit, true
	}
	return 0, false
}
