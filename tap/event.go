package tap

import (
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// Event is one event of a tapped request or connection. One of RequestInit,
// ResponseInit, ResponseEnd, Open and Close is set. None of them is set if
// Dropped is, and for an event of the server that this package does not know.
//
// Events share their maps, slices and pointers. Do not change them.
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

	Open  *ConnectionOpen
	Close *ConnectionClose

	// Dropped is the number of events that did not fit since the last report.
	// Such an event has no other field.
	Dropped uint64
}

// StreamID identifies a tapped request. It is the same in all of its events.
type StreamID struct {
	Base   uint32 // one for each call of Observe
	Stream uint64 // counts the requests of that call, from 0
}

// RequestInit is the event of a request that is about to be forwarded.
type RequestInit struct {
	Method    string
	Scheme    string // "" if unknown
	Authority string // "" if unknown
	Path      string // without the query
	Headers   []Field
}

// ResponseInit is the event of response headers.
type ResponseInit struct {
	SinceRequestInit time.Duration
	Status           int // the HTTP status
	Headers          []Field
}

// ResponseEnd is the event of the end of a response, or of a request without
// one. Unknown values are nil.
type ResponseEnd struct {
	SinceRequestInit  time.Duration
	SinceResponseInit *time.Duration // nil when there were no response headers
	Bytes             uint64         // of the body that were read

	// GRPCStatus comes from the trailers, or else from the headers.
	GRPCStatus *codes.Code

	// ResetCode is the HTTP/2 error code of an aborted stream. It is
	// known for HTTP/2 errors of net/http, for errors with a method
	// ResetCode() uint32, for a context that ended (8, CANCEL), for a rejection
	// (7, REFUSED_STREAM), and for a response that had begun when its handler
	// panicked or a layer below returned an error (2, INTERNAL_ERROR).
	ResetCode *uint32

	Trailers []Field

	// The following fields are set only on request, see [Registry.Watch].
	Explanation               []layer.Node // how the request was routed and balanced
	RequestBody, ResponseBody *Body
}

// Body is the part of a body that was read and kept.
type Body struct {
	Data []byte
	Cut  bool // there was more

	contentType string // for the hook; nothing is shown before it has seen it
}

// ConnectionOpen is the event of a new connection.
type ConnectionOpen struct{}

// ConnectionClose is the event of the end of a connection, or of a failed dial.
// A failed dial has no ConnectionOpen, and SinceOpen is its duration.
type ConnectionClose struct {
	SinceOpen time.Duration
	Sent      uint64 // bytes to the destination
	Received  uint64 // bytes from it
	Err       string // the error of the connection or dial; else ""
}

// Field is one header or trailer field. Headers and Trailers are nil unless the
// watcher asked for them.
type Field struct {
	Name  string // in lower case
	Value string // raw bytes, or "[redacted]"
}

// fieldOverhead is the size of a Field without its text.
const fieldOverhead = 32

// weight returns about how many bytes of text an event keeps alive. Only
// inbound requests have source labels of their own.
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

// labelsOverhead is the size of a map of a few labels without their text.
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

// nodeOverhead is the size of a node without its text.
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
