package message

import (
	"net/http"
	"strings"
)

// CloseBody closes the body of req, if it has one.
func CloseBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// ExpectsContinue reports whether h has Expect: 100-continue. The server then decides
// whether the body is sent.
func ExpectsContinue(h http.Header) bool { return Listed(h["Expect"], "100-continue") }

// IsRPC reports whether h has the content type of gRPC or of a stream of the Connect
// protocol. In the body of such a message, pauses are normal.
func IsRPC(h http.Header) bool {
	t := h["Content-Type"]
	return len(t) > 0 && (strings.HasPrefix(t[0], "application/grpc") || strings.HasPrefix(t[0], "application/connect"))
}

// Announce adds the names in values, the values of a Trailer field, to the map trailer. The
// entries are nil. It skips the names that are invalid in a trailer.
func Announce(trailer http.Header, values []string) {
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); ValidTrailer(name) {
				trailer[name] = nil
			}
		}
	}
}
