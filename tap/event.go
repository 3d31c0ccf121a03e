package tap

import (
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// Event is one event of a tapped request or connection. Exactly one of RequestInit,
// ResponseInit, ResponseEnd, Open and Close is set. None of them is set if Dropped is
// set, or if the server sent an event that this package does not know.
//
// Events share their maps, slices and pointers. Do not change them.
type Event struct {
	Direction Direction
	ID        StreamID

	Source      netip.AddrPort // the client; the zero AddrPort if unknown
	Destination netip.AddrPort // the endpoint, or the original destination

	SourceLabels      map[string]string
	DestinationLabels map[string]string
	RouteLabels       map[string]string // nil if no route matched

	RequestInit  *RequestInit
	ResponseInit *ResponseInit
	ResponseEnd  *ResponseEnd

	Open  *ConnectionOpen
	Close *ConnectionClose

	// Dropped is the number of events that were dropped since the last report, because
	// they did not fit into the buffer. An event with Dropped has no other field.
	Dropped uint64
}

// StreamID identifies a tapped request. All of its events have the same StreamID.
type StreamID struct {
	Base   uint32 // identifies the call of Observe or Watch
	Stream uint64 // number of the request in that call, from 0
}

// RequestInit is the event of a request that is about to be forwarded.
type RequestInit struct {
	Method    string
	Scheme    string // "" if unknown
	Authority string // "" if unknown
	Path      string // without the query
	Headers   []Field
}

// ResponseInit is the event of the response headers.
type ResponseInit struct {
	SinceRequestInit time.Duration
	Status           int // the HTTP status
	Headers          []Field
}

// ResponseEnd is the event of the end of a response, or of a request without a
// response. A nil pointer means that the value is unknown.
type ResponseEnd struct {
	SinceRequestInit  time.Duration
	SinceResponseInit *time.Duration // nil without response headers
	Bytes             uint64         // number of bytes of the body that were read

	// GRPCStatus comes from the trailers, or else from the headers.
	GRPCStatus *codes.Code

	// ResetCode is the HTTP/2 error code of an aborted stream. Its sources are HTTP/2
	// errors of net/http and errors with a method ResetCode() uint32. A context that
	// ended has 8 (CANCEL), and a rejection has 7 (REFUSED_STREAM). A response that
	// started before its handler panicked or Call failed has 2 (INTERNAL_ERROR).
	ResetCode *uint32

	Trailers []Field

	// The following fields are set only on request, see [Registry.Watch].
	Explanation               []layer.Node // how the request was routed and balanced
	RequestBody, ResponseBody *Body
}

// Body is the part of a body that was read and kept.
type Body struct {
	Data []byte
	Cut  bool // whether the body was longer

	contentType string // for the redact function of WithBodies
}

// ConnectionOpen is the event of a new connection.
type ConnectionOpen struct{}

// ConnectionClose is the event of the end of a connection, or of a failed dial. A
// failed dial causes no ConnectionOpen, and SinceOpen is the duration of the dial.
type ConnectionClose struct {
	SinceOpen time.Duration
	Sent      uint64 // bytes to the destination
	Received  uint64 // bytes from the destination
	Err       string // the error of the connection or dial, or ""
}

// Field is one header or trailer field. Headers and Trailers of events are nil unless
// the watcher requested fields.
type Field struct {
	Name  string // in lower case
	Value string // raw bytes, or "[redacted]"
}

// fieldOverhead is the size of a Field in bytes, without its text.
const fieldOverhead = 32

// weight returns the approximate number of bytes that e keeps in memory. Source labels
// count only for inbound requests, because outbound requests share the map of the layer.
func (e *Event) weight() int64 {
	if e.Direction == Inbound {
		return e.own() + weighLabels(e.SourceLabels)
	}
	return e.own()
}

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

// labelsOverhead is the size of a map of a few labels in bytes, without their text.
const labelsOverhead = 320

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
		return int64(len(e.Close.Err))
	}
	return 0
}

func (b *Body) weight() int64 {
	if b == nil {
		return 0
	}
	return int64(cap(b.Data) + len(b.contentType))
}

// nodeOverhead is the size of a layer.Node in bytes, without its text.
const nodeOverhead = 96

func weighNodes(nodes []layer.Node) (n int64) {
	for i := range nodes {
		node := &nodes[i]
		n += int64(nodeOverhead + len(node.Name))
		for _, a := range node.State {
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

func weigh(fields []Field) (n int64) {
	for _, f := range fields {
		n += int64(fieldOverhead + len(f.Name) + len(f.Value))
	}
	return n
}
