package tap

import (
	"encoding/binary"
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/encoding/protowire"
)

func (w *wire) requestInit(r *RequestInit) {
	method, registered := http_types.HttpMethod_Registered_value[r.Method]
	w.named(2, r.Method, method, registered)
	switch r.Scheme {
	case "http":
		w.named(3, r.Scheme, int32(http_types.Scheme_HTTP), true)
	case "https":
		w.named(3, r.Scheme, int32(http_types.Scheme_HTTPS), true)
	default:
		w.named(3, r.Scheme, 0, false)
	}
	w.bytes(4, valid(r.Authority))
	w.bytes(5, valid(r.Path))
	w.fields(6, r.Headers)
}

func (w *wire) responseInit(r *ResponseInit) {
	w.duration(2, r.SinceRequestInit)
	w.number(3, uint64(uint32(r.Status)))
	w.fields(4, r.Headers)
}

func (w *wire) responseEnd(r *ResponseEnd) {
	w.duration(2, r.SinceRequestInit)
	if r.SinceResponseInit != nil {
		w.duration(3, *r.SinceResponseInit)
	}
	w.number(4, r.Bytes)
	at := w.open(5)
	switch { // a message holds one of them
	case r.ResetCode != nil:
		w.one(2, uint64(*r.ResetCode))
	case r.GRPCStatus != nil:
		w.one(1, uint64(*r.GRPCStatus))
	}
	w.close(at)
	w.fields(6, r.Trailers)
}

func (w *wire) address(field protowire.Number, a netip.AddrPort) {
	a = plain(a)
	if !a.IsValid() {
		return
	}
	whole := w.open(field)
	ip := w.open(1)
	if a.Addr().Is4() {
		b := a.Addr().As4()
		w.b = protowire.AppendTag(w.b, 1, protowire.Fixed32Type)
		w.b = protowire.AppendFixed32(w.b, binary.BigEndian.Uint32(b[:]))
	} else {
		b := a.Addr().As16()
		six := w.open(2)
		w.fixed64(1, binary.BigEndian.Uint64(b[:8]))
		w.fixed64(2, binary.BigEndian.Uint64(b[8:]))
		w.close(six)
	}
	w.close(ip)
	w.number(2, uint64(a.Port()))
	w.close(whole)
}

// labels writes an EndpointMeta or a RouteMeta, which are alike.
func (w *wire) labels(field protowire.Number, labels map[string]string) {
	if labels == nil {
		return
	}
	whole := w.open(field)
	for k, v := range labels {
		at := w.open(1)
		w.text(1, valid(k))
		w.text(2, valid(v))
		w.close(at)
	}
	w.close(whole)
}

// named writes a method or a scheme: its number, if it is registered.
func (w *wire) named(field protowire.Number, name string, number int32, registered bool) {
	if name == "" {
		return
	}
	at := w.open(field)
	if registered {
		w.one(1, uint64(number))
	} else {
		w.text(2, valid(name))
	}
	w.close(at)
}

func (w *wire) fields(field protowire.Number, fields []Field) {
	if fields == nil {
		return
	}
	whole := w.open(field)
	for _, f := range fields {
		at := w.open(1)
		w.bytes(1, valid(f.Name))
		w.bytes(2, f.Value)
		w.close(at)
	}
	w.close(whole)
}
