package tap

import (
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// Event is one event about a watched request or connection. One of RequestInit, ResponseInit,
// ResponseEnd, Open and Close is set. All five are nil in an event that reports dropped events
// (see Dropped), and if the server sent a kind of event that this package does not support.
//
// Events for different watchers share their maps, slices and pointers, so you must not change
// them.
type Event struct {
	Direction Direction
	ID        StreamID

	Source netip.AddrPort // the client; the zero AddrPort if unknown
	// Destination is an outbound request's endpoint, or the address at which an inbound request
	// arrived.
	Destination netip.AddrPort

	SourceLabels      map[string]string
	DestinationLabels map[string]string
	RouteLabels       map[string]string // nil if no route matched

	RequestInit  *RequestInit
	ResponseInit *ResponseInit
	ResponseEnd  *ResponseEnd

	Open  *ConnectionOpen
	Close *ConnectionClose

	// Dropped is how many events did not fit into the watcher's buffer since the last report. If
	// Dropped is not 0, the event is such a report, and all other fields are zero.
	Dropped uint64
}

// StreamID identifies a watched request or connection. All its events carry the same StreamID.
type StreamID struct {
	Base   uint32 // identifies the call of Observe or Watch
	Stream uint64 // number of the request in that call, from 0
}

// RequestInit is the event that is sent before a request is forwarded.
type RequestInit struct {
	Method    string
	Scheme    string // "" if unknown
	Authority string // "" if unknown
	Path      string // without the query
	Headers   []Field
}

// ResponseInit is the event that is sent when the response headers have arrived.
type ResponseInit struct {
	SinceRequestInit time.Duration
	Status           int // the HTTP status
	Headers          []Field
}

// ResponseEnd is the event that is sent when a response has ended, or when a request has
// failed without a response. A field that is nil does not exist or is unknown.
type ResponseEnd struct {
	SinceRequestInit  time.Duration
	SinceResponseInit *time.Duration // nil without response headers
	Bytes             uint64         // number of bytes of the body that were read

	// GRPCStatus is the value of grpc-status in the trailers, or else in the headers. It is
	// nil if ResetCode is set.
	GRPCStatus *codes.Code

	// ResetCode is the HTTP/2 error code if the request did not complete, or nil. It is 7
	// (REFUSED_STREAM) for a rejection. Otherwise it is the code in net/http's HTTP/2 error, or
	// in an error with a method ResetCode() uint32. Without such a code, it is 8 (CANCEL) if the
	// context ended. It is 2 (INTERNAL_ERROR) for a handler's other failures after its response
	// started.
	ResetCode *uint32

	Trailers []Field

	// Explanation, RequestBody and ResponseBody are set only if the watcher requests them,
	// see [Registry.Watch].
	Explanation               []layer.Node // how the request was routed and balanced
	RequestBody, ResponseBody *Body
}

// Body is the kept beginning of a request or response body, after redaction.
type Body struct {
	Data []byte
	Cut  bool // whether the body was longer

	contentType string // argument contentType of the function of WithBodies
}

// ConnectionOpen is a new connection's event.
type ConnectionOpen struct{}

// ConnectionClose is the event that is sent when a connection is closed or a dial fails. A failed
// dial causes no ConnectionOpen. For a failed dial, SinceOpen is the time that the dial took.
type ConnectionClose struct {
	SinceOpen time.Duration
	Sent      uint64 // bytes to the destination
	Received  uint64 // bytes from the destination
	Err       string // the error of the connection or dial, or ""

	// Explanation lists the choices that layers made for the connection, if the watcher requests
	// them, see [Explain].
	Explanation []layer.Node
}

// Field is one header or trailer field. The Headers and Trailers of an event are nil unless
// the watcher requests fields.
type Field struct {
	Name  string // in lower case
	Value string // raw bytes, with "[redacted]" in place of secret parts
}

// fieldOverhead is the size in bytes of a Field in memory, without its text.
const fieldOverhead = 32

// weight returns about how many bytes of memory e occupies in a buffer. The source labels of an
// outbound event do not count, because all events of the layer share one map.
func (e *Event) weight() int64 {
	if e.Direction == Inbound {
		return e.own() + weighLabels(e.SourceLabels)
	}
	return e.own()
}

// weighLabels returns about how many bytes a map of labels takes in memory.
func weighLabels(labels map[string]string) int64 {
	if len(labels) == 0 {
		return 0
	}
	n := int64(labelsOverhead)
	for k, v := range labels {
		n += int64(len(k) + len(v))
	}
	return n
}

// labelsOverhead is the approximate size in bytes of a map with a few labels, without their
// text.
const labelsOverhead = 320

// own returns about how many bytes of memory the one part of e that is set takes, such as its RequestInit.
func (e *Event) own() int64 {
	switch {
	case e.RequestInit != nil:
		r := e.RequestInit
		return weigh(r.Headers) + int64(len(r.Method)+len(r.Scheme)+len(r.Authority)+len(r.Path))
	case e.ResponseInit != nil:
		return weigh(e.ResponseInit.Headers)
	case e.ResponseEnd != nil:
		r := e.ResponseEnd
		return weigh(r.Trailers) + weighNodes(r.Explanation) + r.RequestBody.weight() + r.ResponseBody.weight()
	case e.Close != nil:
		return int64(len(e.Close.Err)) + weighNodes(e.Close.Explanation)
	}
	return 0
}

// weight returns how many bytes of memory the texts of b take. b may be nil.
func (b *Body) weight() int64 {
	if b == nil {
		return 0
	}
	return int64(cap(b.Data) + len(b.contentType))
}

// nodeOverhead is the size in bytes of a layer.Node in memory, without its text.
const nodeOverhead = 96

// weighNodes returns about how many bytes an explanation takes in memory, with all nodes below these.
func weighNodes(nodes []layer.Node) (n int64) {
	for i := range nodes {
		node := &nodes[i]
		n += int64(nodeOverhead + len(node.Name))
		for _, a := range node.State {
			// Only texts vary in size; other values are part of the overhead.
			n += int64(fieldOverhead + len(a.Key))
			if s, ok := a.Value.(string); ok {
				n += int64(len(s))
			}
		}
		n += weighNodes(node.Children)
		if node.Next != nil {
			n += weighNodes([]layer.Node{*node.Next})
		}
	}
	return n
}

// weigh returns about how many bytes header fields take in memory.
func weigh(fields []Field) (n int64) {
	for _, f := range fields {
		n += int64(fieldOverhead + len(f.Name) + len(f.Value))
	}
	return n
}
