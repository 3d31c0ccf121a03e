package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gotower/gotower/tap"
)

// line is an event in the format of `linkerd viz tap`; wide adds all labels.
func line(e tap.Event, wide bool) string {
	var b strings.Builder
	direction, tls := "???", ""
	switch e.Direction {
	case tap.Inbound:
		direction, tls = "in ", e.SourceLabels["tls"]
	case tap.Outbound:
		direction, tls = "out", e.DestinationLabels["tls"]
	}
	where := fmt.Sprintf("proxy=%s src=%s dst=%s tls=%s", direction, addr(e.Source), addr(e.Destination), tls)
	id := fmt.Sprintf("id=%d:%d", e.ID.Base, e.ID.Stream)
	switch {
	case e.RequestInit != nil:
		r := e.RequestInit
		fmt.Fprintf(&b, "req %s %s :method=%s :authority=%s :path=%s", id, where, r.Method, r.Authority, r.Path)
	case e.ResponseInit != nil:
		r := e.ResponseInit
		fmt.Fprintf(&b, "rsp %s %s :status=%d latency=%dµs", id, where, r.Status, r.SinceRequestInit.Microseconds())
	case e.ResponseEnd != nil:
		fmt.Fprintf(&b, "end %s %s%s", id, where, ending(e.ResponseEnd))
	default:
		fmt.Fprintf(&b, "unknown %s", where)
	}
	if wide {
		labels(&b, "src", e.SourceLabels)
		labels(&b, "dst", e.DestinationLabels)
		labels(&b, "rt", e.RouteLabels)
	}
	return b.String()
}

func ending(r *tap.ResponseEnd) string {
	var status string
	switch {
	case r.GRPCStatus != nil:
		status = fmt.Sprintf(" grpc-status=%s", *r.GRPCStatus)
	case r.ResetCode != nil:
		status = fmt.Sprintf(" reset-error=%d", *r.ResetCode)
	}
	took := r.SinceRequestInit
	if r.SinceResponseInit != nil {
		took = *r.SinceResponseInit
	}
	return fmt.Sprintf("%s duration=%dµs response-length=%dB", status, took.Microseconds(), r.Bytes)
}

// addr prints an unknown address as linkerd does: as nothing.
func addr(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func labels(b *strings.Builder, prefix string, l map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(b, " %s_%s=%s", prefix, k, l[k])
	}
}

// jsonEvent is an event in the format of `linkerd viz tap -o json`.
type jsonEvent struct {
	Source         jsonPeer          `json:"source"`
	Destination    jsonPeer          `json:"destination"`
	RouteMeta      map[string]string `json:"routeMeta,omitempty"`
	ProxyDirection string            `json:"proxyDirection,omitempty"`
	RequestInit    *jsonRequestInit  `json:"requestInitEvent,omitempty"`
	ResponseInit   *jsonResponseInit `json:"responseInitEvent,omitempty"`
	ResponseEnd    *jsonResponseEnd  `json:"responseEndEvent,omitempty"`
}

type jsonPeer struct {
	IP       string            `json:"ip"`
	Port     uint16            `json:"port"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type jsonID struct {
	Base   uint32 `json:"base"`
	Stream uint64 `json:"stream"`
}

type jsonDuration struct {
	Seconds int64 `json:"seconds"`
	Nanos   int64 `json:"nanos"`
}

type jsonHeader struct {
	Name string  `json:"name"`
	Str  *string `json:"valueStr,omitempty"`
	Bin  []byte  `json:"valueBin,omitempty"`
}

type jsonRequestInit struct {
	ID        jsonID       `json:"id"`
	Method    string       `json:"method"`
	Scheme    string       `json:"scheme"`
	Authority string       `json:"authority"`
	Path      string       `json:"path"`
	Headers   []jsonHeader `json:"headers,omitempty"`
}

type jsonResponseInit struct {
	ID               jsonID       `json:"id"`
	SinceRequestInit jsonDuration `json:"sinceRequestInit"`
	HTTPStatus       int          `json:"httpStatus"`
	Headers          []jsonHeader `json:"headers,omitempty"`
}

type jsonResponseEnd struct {
	ID                jsonID        `json:"id"`
	SinceRequestInit  jsonDuration  `json:"sinceRequestInit"`
	SinceResponseInit *jsonDuration `json:"sinceResponseInit,omitempty"`
	ResponseBytes     uint64        `json:"responseBytes"`
	Trailers          []jsonHeader  `json:"trailers,omitempty"`
	GRPCStatusCode    *uint32       `json:"grpcStatusCode,omitempty"`
	ResetErrorCode    *uint32       `json:"resetErrorCode,omitempty"`
}

// writeJSON writes one event as an indented object.
func writeJSON(w io.Writer, e tap.Event) error {
	out := jsonEvent{
		Source:      jsonPeer{IP: ip(e.Source), Port: e.Source.Port(), Metadata: e.SourceLabels},
		Destination: jsonPeer{IP: ip(e.Destination), Port: e.Destination.Port(), Metadata: e.DestinationLabels},
		RouteMeta:   e.RouteLabels,
	}
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
	if r := e.ResponseEnd; r != nil {
		end := &jsonResponseEnd{
			ID: id, SinceRequestInit: duration(int64(r.SinceRequestInit)),
			ResponseBytes: r.Bytes, Trailers: headers(r.Trailers), ResetErrorCode: r.ResetCode,
		}
		if r.SinceResponseInit != nil {
			d := duration(int64(*r.SinceResponseInit))
			end.SinceResponseInit = &d
		}
		if r.GRPCStatus != nil {
			code := uint32(*r.GRPCStatus)
			end.GRPCStatusCode = &code
		}
		out.ResponseEnd = end
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func ip(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.Addr().String()
}

func duration(ns int64) jsonDuration {
	return jsonDuration{ns / 1_000_000_000, ns % 1_000_000_000}
}

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
