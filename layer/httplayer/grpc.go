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

// isGRPC reports whether r is a received request that expects a gRPC status: it has a gRPC
// content type and came over HTTP/2.
func isGRPC(r *http.Request) bool { return r.ProtoMajor == 2 && hasGRPCType(r) }

const grpcType = "application/grpc"

// hasGRPCType reports whether r has the content type of gRPC or gRPC-Web.
func hasGRPCType(r *http.Request) bool {
	return strings.HasPrefix(first(r.Header, "Content-Type"), grpcType)
}

// needsHTTP2 reports whether r has the content type of gRPC. gRPC-Web may use HTTP/1.1.
func needsHTTP2(r *http.Request) bool {
	return hasGRPCType(r) && !strings.HasPrefix(first(r.Header, "Content-Type"), grpcType+"-web")
}

// isConnectRPC reports whether r is a request of the Connect protocol. Some streams of that
// protocol need HTTP/2.
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

// grpcBody is the body of a gRPC response. If reading from the endpoint fails, grpcBody ends with
// io.EOF, and with a gRPC status in the trailers. If the field resets is true, Read returns a
// stream reset as an error instead.
type grpcBody struct {
	wrappedBody
	req     *http.Request
	rsp     *http.Response
	began   time.Time
	informs bool // grpc-message has the text of the error
	resets  bool // Read returns a stream reset as an error, so that the stream of the client is reset
}

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

// overdue adds context.DeadlineExceeded to err if err is a stream reset with the code CANCEL
// that arrived after the grpc-timeout of req had passed. A gRPC server ends an overdue call
// with this reset. The argument began is the time at which the request began. Any other err
// is returned unchanged.
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
