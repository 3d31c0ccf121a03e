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

// isGRPC reports whether r expects its status as gRPC.
func isGRPC(r *http.Request) bool { return r.ProtoMajor == 2 && hasGRPCType(r) }

const grpcType = "application/grpc"

// hasGRPCType reports whether r is a gRPC or gRPC-Web request.
func hasGRPCType(r *http.Request) bool {
	return strings.HasPrefix(first(r.Header, "Content-Type"), grpcType)
}

// isGRPCWeb reports whether r is a gRPC-Web request, which may use HTTP/1.1.
func isGRPCWeb(r *http.Request) bool {
	return strings.HasPrefix(first(r.Header, "Content-Type"), grpcType+"-web")
}

// isConnectRPC reports whether r is a request of the Connect protocol. Some of
// its streams need HTTP/2.
func isConnectRPC(r *http.Request) bool {
	return first(r.Header, "Connect-Protocol-Version") != "" ||
		strings.HasPrefix(first(r.Header, "Content-Type"), "application/connect+") ||
		r.Method == http.MethodGet && r.URL != nil && strings.Contains(r.URL.RawQuery, "connect=v1")
}

// setStatus writes a gRPC status into headers or trailers, and message unless
// it is empty.
func setStatus(h http.Header, code uint32, message string) {
	h.Set("Grpc-Status", strconv.FormatUint(uint64(code), 10))
	if message != "" {
		h.Set("Grpc-Message", percentEncode(message))
	}
}

// percentEncode encodes grpc-message as gRPC's PROTOCOL-HTTP2.md does: % and
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

// grpcBody is the body of a gRPC response. If the endpoint's connection fails,
// the body ends with a status in the trailers, because a reset would give the
// client no reason.
type grpcBody struct {
	io.ReadCloser
	req     *http.Request
	rsp     *http.Response
	began   time.Time
	informs bool // grpc-message carries the text of the error
	resets  bool // the stream of the client can be reset with a code
}

// Pending reports what Read returns without waiting.
func (b *grpcBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

func (b *grpcBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF { //nolint:errorlint // a Reader returns exactly this value
		return n, err
	}
	err = overdue(b.req, b.began, err)
	if reset, ok := asReset(err); ok && reset.Remote && b.resets && !isUpgraded(b.req) && !errors.Is(err, context.DeadlineExceeded) {
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

// overdue converts err to an exceeded deadline if the deadline of req has passed and the
// endpoint canceled the stream. A gRPC server ends a late call with such a reset.
func overdue(req *http.Request, began time.Time, err error) error {
	reset, ok := errors.AsType[*message.ResetError](err)
	if !ok || reset.Code != message.CodeCancel {
		return err
	}
	timeout, ok := grpcTimeout(req.Header.Get("Grpc-Timeout"))
	if !ok || time.Since(began) < timeout {
		return err
	}
	return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
}

// grpcTimeout parses grpc-timeout: up to 8 digits and a unit.
func grpcTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	unit := grpcUnit(s[len(s)-1])
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 63)
	if unit == 0 || err != nil {
		return 0, false
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, true
	}
	return time.Duration(n) * unit, true
}

// grpcUnit returns the unit for a letter of grpc-timeout, or 0.
func grpcUnit(letter byte) time.Duration {
	switch letter {
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	case 'S':
		return time.Second
	case 'm':
		return time.Millisecond
	case 'u':
		return time.Microsecond
	case 'n':
		return time.Nanosecond
	}
	return 0
}
