package spans

import (
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strings"
)

// Context identifies a span in a trace.
type Context struct {
	Trace  [16]byte
	ID     [8]byte // of the span
	Parent [8]byte // zero if the trace begins with this span
	Flags  byte    // as in the header traceparent
	State  string  // as in the header tracestate

	format format
}

// format says in which headers a trace arrived, so that it is passed on in the same ones.
type format byte

const (
	w3c      format = iota // W3C Trace Context
	b3                     // Zipkin's X-B3-*
	grpcBlob               // OpenCensus's grpc-trace-bin
)

// Flags that W3C Trace Context defines. Others must not be forwarded.
const (
	sampled  = 1
	allFlags = sampled | 2 // the second one says that the trace ID is random
)

// The headers in all formats.
const (
	traceparent = "Traceparent"
	tracestate  = "Tracestate"
	b3TraceID   = "X-B3-Traceid"
	b3SpanID    = "X-B3-Spanid"
	b3Sampled   = "X-B3-Sampled"
	grpcTrace   = "Grpc-Trace-Bin"
)

// Begin returns the context for a trace that begins here. It has no span yet.
func Begin(isSampled bool) (c Context) {
	randomize(c.Trace[:])
	if isSampled {
		c.Flags = sampled
	}
	return c
}

// Sampled reports whether the trace's spans are sent to a receiver.
func (c *Context) Sampled() bool { return c.Flags&sampled != 0 }

// Child returns a new span with the parent c.
func (c *Context) Child() *Context {
	n := *c
	n.Parent = c.ID
	// The ID is replaced, and other fields are those of the parent.
	randomize(n.ID[:])
	return &n
}

// randomize fills id with random bytes that are not all zero.
func randomize(id []byte) {
	for i := range id {
		id[i] = byte(rand.IntN(256))
	}
	// One bit is enough to rule out zero, which is invalid.
	id[0] |= 1
}

// Parse returns the span that h's traceparent and tracestate describe, and false if traceparent
// is missing or invalid. Version 00 of the header has exactly four fields; Parse ignores further
// ones in later versions.
func Parse(h http.Header) (c Context, ok bool) {
	values := h[traceparent]
	// Two headers are ambiguous, so neither is used.
	if len(values) != 1 {
		return c, false
	}
	parts := strings.SplitN(values[0], "-", 5)
	// The header is lower case. Version ff is forbidden.
	if len(parts) < 4 || strings.ToLower(values[0]) != values[0] || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 {
		return c, false
	}
	// The fields are hexadecimal numbers of fixed length, in this order.
	var version, flags [1]byte
	for i, id := range [][]byte{version[:], c.Trace[:], c.ID[:], flags[:]} {
		if len(parts[i]) != 2*len(id) || !decodeID(id, parts[i]) {
			return c, false
		}
	}
	c.Flags = flags[0] & allFlags
	c.State = strings.Join(h[tracestate], ",")
	return c, c.valid()
}

// ParseAny is like [Parse], but falls back to grpc-trace-bin and X-B3-*, as linkerd's proxy does.
func ParseAny(h http.Header) (c Context, ok bool) {
	if c, ok = Parse(h); ok {
		return c, true
	}
	if c, ok = parseGRPC(h.Get(grpcTrace)); ok {
		return c, true
	}
	// A new value, because parseGRPC may have filled in parts of an invalid header.
	c = Context{format: b3}
	if !decodeID(c.Trace[:], h.Get(b3TraceID)) || !decodeID(c.ID[:], h.Get(b3SpanID)) {
		return c, false
	}
	if h.Get(b3Sampled) == "1" {
		c.Flags = sampled
	}
	return c, c.valid()
}

// valid reports whether c identifies a span, whose IDs must not be zero.
func (c *Context) valid() bool { return c.Trace != [16]byte{} && c.ID != [8]byte{} }

// decodeID decodes the hexadecimal number in text into id, adding leading zeros. It returns false
// if text is not a number or too long.
func decodeID(id []byte, text string) bool {
	if text == "" || len(text) > 2*len(id) {
		return false
	}
	// Clients may omit the zeros before a number, also an odd number of them.
	zeros := strings.Repeat("0", 2*len(id)-len(text))
	_, err := hex.Decode(id, []byte(zeros+text))
	return err == nil
}

// Fields in grpc-trace-bin. Each begins with its number.
const (
	grpcTraceID = iota
	grpcSpanID
	grpcFlags
)

// parseGRPC parses a grpc-trace-bin header.
func parseGRPC(value string) (c Context, ok bool) {
	c.format = grpcBlob
	// Clients send it with and without padding.
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil || len(b) == 0 {
		return c, false
	}
	var flags [1]byte
	for b = b[1:]; len(b) > 0; { // skip the version
		var field []byte
		switch b[0] {
		case grpcTraceID:
			field = c.Trace[:]
		case grpcSpanID:
			field = c.ID[:]
		case grpcFlags:
			field = flags[:]
		default: // unknown, from a later version
			b = nil
			continue
		}
		// The field and its number do not fit.
		if len(b) <= len(field) {
			return c, false
		}
		copy(field, b[1:])
		b = b[1+len(field):]
	}
	c.Flags = flags[0] & allFlags
	return c, c.valid()
}

// Write sets the headers for span c in h, in the format in which the trace arrived. For X-B3-*,
// only the span ID changes.
func (c *Context) Write(h http.Header) {
	switch c.format {
	case b3:
		h[b3SpanID] = []string{hex.EncodeToString(c.ID[:])}
	case grpcBlob:
		// 0 is the version. Each field begins with its number.
		b := append([]byte{0, grpcTraceID}, c.Trace[:]...)
		b = append(append(b, grpcSpanID), c.ID[:]...)
		h[grpcTrace] = []string{base64.StdEncoding.EncodeToString(append(b, grpcFlags, c.Flags))}
	default:
		h[traceparent] = []string{"00-" + hex.EncodeToString(c.Trace[:]) + "-" + hex.EncodeToString(c.ID[:]) +
			"-" + hex.EncodeToString([]byte{c.Flags})}
		// The client's tracestate belongs to another trace then.
		if c.State == "" {
			delete(h, tracestate)
		} else {
			h[tracestate] = []string{c.State}
		}
	}
}
