package httplayer

import (
	"fmt"
	"net"
)

// GuardReason is why a [Guard] cut a connection.
type GuardReason uint8

// The reasons. Where a byte offends twice, the one that stands first in the
// bytes counts.
const (
	BadRequestLine      GuardReason = iota + 1 // not method, target and HTTP/1.0 or HTTP/1.1 with one space between
	BadField                                   // a line without a colon, or a name that is no token or that some read as a framing field
	SpaceBeforeColon                           // "Content-Length : 5"
	ObsFold                                    // a line that begins with white space
	BareCR                                     // a carriage return without a line feed
	BareLF                                     // a line feed without a carriage return
	ControlByte                                // NUL, or another control character
	BadLength                                  // a Content-Length that is not digits alone, or too large
	RepeatedLength                             // more than one Content-Length
	BadTransferEncoding                        // a Transfer-Encoding that is not one "chunked", or in HTTP/1.0
	ConflictingLength                          // Content-Length and Transfer-Encoding
	BadHost                                    // no Host, more than one, or one that is no host
	HostMismatch                               // the target names another host than Host does
	BadChunk                                   // a size that is not hexadecimal, an odd extension, or a missing CRLF
	BadTrailer                                 // a trailer that is a framing field or Host
	guardReasons
)

// String returns the reason in lower case, as it labels the counter.
func (r GuardReason) String() string {
	names := [...]string{
		"unknown", "request_line", "field", "space_before_colon", "folded", "bare_cr", "bare_lf", "control",
		"length", "repeated_length", "coding", "two_framings", "host", "other_host", "chunk", "trailer",
	}
	if int(r) >= len(names) {
		r = 0
	}
	return names[r]
}

// GuardError is how the reading of a connection ends that a [Guard] cut. A
// net/http server gets bytes before it that it answers with 400.
type GuardError struct {
	Reason GuardReason
	Offset int64    // of the byte that offends, from the beginning of the connection
	Remote net.Addr // the client
}

// Error says what was wrong, where, and with whom.
func (e *GuardError) Error() string {
	return fmt.Sprintf("ambiguous HTTP/1 from %v: %v, at byte %d of the connection", e.Remote, e.Reason, e.Offset)
}
