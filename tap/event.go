package tap

import (
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
)

// Event is one thing that happened to one tapped request. Of RequestInit,
// ResponseInit and ResponseEnd one is set; none is when a server told of
// something that this package does not know.
//
// Events share their maps, slices and pointers with each other. Change none.
type Event struct {
	Direction Direction
	ID        StreamID

	Source      netip.AddrPort // the client; zero when unknown
	Destination netip.AddrPort // the endpoint, or the original destination

	SourceLabels      map[string]string
	DestinationLabels map[string]string
	RouteLabels       map[string]string // nil when no route matched

	RequestInit  *RequestInit
	ResponseInit *ResponseInit
	ResponseEnd  *ResponseEnd
}

// StreamID tells tapped requests apart. It is the same in all events of one
// request.
type StreamID struct {
	Base   uint32 // one for each call of Observe
	Stream uint64 // counts the requests of that call, from 0
}

// RequestInit says that a request is about to be forwarded.
type RequestInit struct {
	Method    string
	Scheme    string // "" when the request does not say
	Authority string // "" when the request does not say
	Path      string // without the query
	Headers   []Field
}

// ResponseInit says that response headers arrived.
type ResponseInit struct {
	SinceRequestInit time.Duration
	Status           int // the HTTP status
	Headers          []Field
}

// ResponseEnd says that a response is over, or that there will be none.
// A pointer is nil where there is nothing to tell.
type ResponseEnd struct {
	SinceRequestInit  time.Duration
	SinceResponseInit *time.Duration // nil when there were no response headers
	Bytes             uint64         // of the body, as far as it was read

	// GRPCStatus comes from the trailers, or from the headers of a response
	// without trailers.
	GRPCStatus *codes.Code

	// ResetCode is the HTTP/2 error code of what broke the stream off. It is
	// known for HTTP/2 errors of net/http, for errors with a method
	// ResetCode() uint32, for a context that ended (8, CANCEL) and for a
	// refusal (7, REFUSED_STREAM).
	ResetCode *uint32

	Trailers []Field
}

// Field is one header or trailer field. Headers and Trailers are nil when
// nobody asked for them.
type Field struct {
	Name  string // in lower case
	Value string // raw bytes, or "[redacted]"
}

// fieldOverhead is what a Field takes besides its text.
const fieldOverhead = 32

// weight is about how many bytes of text an event keeps alive: what comes from
// the request, and may be large.
func (e *Event) weight() int64 {
	switch {
	case e.RequestInit != nil:
		r := e.RequestInit
		return weigh(r.Headers) + int64(len(r.Method)+len(r.Scheme)+len(r.Authority)+len(r.Path))
	case e.ResponseInit != nil:
		return weigh(e.ResponseInit.Headers)
	case e.ResponseEnd != nil:
		return weigh(e.ResponseEnd.Trailers)
	}
	return 0
}

func weigh(fields []Field) (n int64) {
	for _, f := range fields {
		n += int64(fieldOverhead + len(f.Name) + len(f.Value))
	}
	return n
}
