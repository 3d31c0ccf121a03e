package main

import (
	"io"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

// jsonEvent is an event in the JSON format of `linkerd viz tap -o json`.
type jsonEvent struct {
	Source         jsonPeer          `json:"source"`
	Destination    jsonPeer          `json:"destination"`
	RouteMeta      map[string]string `json:"routeMeta,omitempty"`
	ProxyDirection string            `json:"proxyDirection,omitempty"`
	RequestInit    *jsonRequestInit  `json:"requestInitEvent,omitempty"`
	ResponseInit   *jsonResponseInit `json:"responseInitEvent,omitempty"`
	ResponseEnd    *jsonResponseEnd  `json:"responseEndEvent,omitempty"`

	// Open and Close are events about connections, which linkerd's format does not contain.
	Open  *jsonOpen  `json:"openEvent,omitempty"`
	Close *jsonClose `json:"closeEvent,omitempty"`
}

// jsonOpen is the beginning of a connection.
type jsonOpen struct {
	ID jsonID `json:"id"`
}

// jsonClose is the end of a connection, with its bytes in both directions.
type jsonClose struct {
	ID        jsonID       `json:"id"`
	SinceOpen jsonDuration `json:"sinceOpen"`
	Sent      uint64       `json:"sent"`
	Received  uint64       `json:"received"`
	Error     string       `json:"error,omitempty"`

	Explanation []layer.Node `json:"explanation,omitempty"`
}

// jsonBody is the beginning of a body: as text if that is valid UTF-8, and otherwise in base64. Cut tells that
// there was more.
type jsonBody struct {
	Str *string `json:"valueStr,omitempty"`
	Bin []byte  `json:"valueBin,omitempty"`
	Cut bool    `json:"cut,omitempty"`
}

// jsonPeer is one end of a connection, with its labels.
type jsonPeer struct {
	IP       string            `json:"ip"`
	Port     uint16            `json:"port"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// jsonID identifies a request or connection among those of one process.
type jsonID struct {
	Base   uint32 `json:"base"`
	Stream uint64 `json:"stream"`
}

// jsonDuration is a duration in the form of protobuf's JSON.
type jsonDuration struct {
	Seconds int64 `json:"seconds"`
	Nanos   int64 `json:"nanos"`
}

// jsonHeader is a header field, whose value is text or, if that is not valid UTF-8, base64.
type jsonHeader struct {
	Name string  `json:"name"`
	Str  *string `json:"valueStr,omitempty"`
	Bin  []byte  `json:"valueBin,omitempty"`
}

// jsonRequestInit is the beginning of a request.
type jsonRequestInit struct {
	ID        jsonID       `json:"id"`
	Method    string       `json:"method"`
	Scheme    string       `json:"scheme"`
	Authority string       `json:"authority"`
	Path      string       `json:"path"`
	Headers   []jsonHeader `json:"headers,omitempty"`
}

// jsonResponseInit is the beginning of a response, with its headers.
type jsonResponseInit struct {
	ID               jsonID       `json:"id"`
	SinceRequestInit jsonDuration `json:"sinceRequestInit"`
	HTTPStatus       int          `json:"httpStatus"`
	Headers          []jsonHeader `json:"headers,omitempty"`
}

// jsonResponseEnd is the end of a response or of a request that failed.
type jsonResponseEnd struct {
	ID                jsonID        `json:"id"`
	SinceRequestInit  jsonDuration  `json:"sinceRequestInit"`
	SinceResponseInit *jsonDuration `json:"sinceResponseInit,omitempty"`
	ResponseBytes     uint64        `json:"responseBytes"`
	Trailers          []jsonHeader  `json:"trailers,omitempty"`
	GRPCStatusCode    *uint32       `json:"grpcStatusCode,omitempty"`
	ResetErrorCode    *uint32       `json:"resetErrorCode,omitempty"`

	Explanation  []layer.Node `json:"explanation,omitempty"`
	RequestBody  *jsonBody    `json:"requestBody,omitempty"`
	ResponseBody *jsonBody    `json:"responseBody,omitempty"`
}

// writeJSON writes e to w as an indented JSON object.
func writeJSON(w io.Writer, e tap.Event) error {
	return text.WriteJSON(w, newJSONEvent(e))
}

// newJSONEvent converts e. Exactly one of its events is set.
func newJSONEvent(e tap.Event) jsonEvent {
	out := jsonEvent{
		Source:      jsonPeer{IP: ip(e.Source), Port: e.Source.Port(), Metadata: e.SourceLabels},
		Destination: jsonPeer{IP: ip(e.Destination), Port: e.Destination.Port(), Metadata: e.DestinationLabels},
		RouteMeta:   e.RouteLabels,
	}
	// The direction is 0 if the process did not tell it.
	if e.Direction != 0 {
		out.ProxyDirection = strings.ToUpper(e.Direction.String())
	}
	id := jsonID(e.ID)
	if r := e.RequestInit; r != nil {
		out.RequestInit = &jsonRequestInit{id, r.Method, r.Scheme, r.Authority, r.Path, headers(r.Headers)}
	}
	if r := e.ResponseInit; r != nil {
		out.ResponseInit = &jsonResponseInit{id, duration(int64(r.SinceRequestInit)), r.Status, headers(r.Headers)}
	}
	if e.ResponseEnd != nil {
		out.ResponseEnd = jsonEnd(id, e.ResponseEnd)
	}
	if e.Open != nil {
		out.Open = &jsonOpen{id}
	}
	if c := e.Close; c != nil {
		out.Close = &jsonClose{id, duration(int64(c.SinceOpen)), c.Sent, c.Received, c.Err, c.Explanation}
	}
	return out
}

// jsonEnd converts the end of a response. Pointers stay nil for what the request did not have.
func jsonEnd(id jsonID, r *tap.ResponseEnd) *jsonResponseEnd {
	end := &jsonResponseEnd{
		ID: id, SinceRequestInit: duration(int64(r.SinceRequestInit)),
		ResponseBytes: r.Bytes, Trailers: headers(r.Trailers), ResetErrorCode: r.ResetCode,
		Explanation: r.Explanation, RequestBody: body(r.RequestBody), ResponseBody: body(r.ResponseBody),
	}
	// A request that failed before its response has no such time.
	if r.SinceResponseInit != nil {
		end.SinceResponseInit = new(duration(int64(*r.SinceResponseInit)))
	}
	if r.GRPCStatus != nil {
		end.GRPCStatusCode = new(uint32(*r.GRPCStatus))
	}
	return end
}

// body converts a recorded body to its form in JSON. It returns nil for nil, that is, if the body was not
// recorded.
func body(b *tap.Body) *jsonBody {
	switch {
	case b == nil:
		return nil
	case utf8.Valid(b.Data):
		return &jsonBody{Str: new(string(b.Data)), Cut: b.Cut}
	}
	return &jsonBody{Bin: b.Data, Cut: b.Cut}
}

// ip returns a's IP address, or "" if it is not known.
func ip(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.Addr().String()
}

func duration(ns int64) jsonDuration {
	return jsonDuration{ns / 1_000_000_000, ns % 1_000_000_000}
}

// headers converts header fields, keeping their order.
func headers(fields []tap.Field) []jsonHeader {
	out := make([]jsonHeader, 0, len(fields))
	for _, f := range fields {
		if utf8.ValidString(f.Value) {
			out = append(out, jsonHeader{Name: f.Name, Str: &f.Value})
		} else {
			out = append(out, jsonHeader{Name: f.Name, Bin: []byte(f.Value)})
		}
	}
	return out
}
