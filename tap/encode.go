package tap

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// wire is a message that is being written, in the order of its fields' numbers
// and those of a oneof last, as package proto writes it. Package proto would first
// need the message in some thirty pieces; for the fields of an event this is all
// that it takes.
type wire struct{ b []byte }

// open begins a message in the message. What is written until close is in it.
func (w *wire) open(field protowire.Number) (at int) {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	w.b = append(w.b, 0) // the length, which most often has one byte
	return len(w.b)
}

func (w *wire) close(at int) {
	n := len(w.b) - at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		var room [9]byte
		w.b = append(w.b, room[:more]...)
		copy(w.b[at+more:], w.b[at:at+n])
	}
	protowire.AppendVarint(w.b[:at-1], uint64(n))
}

// number writes nothing for 0, as is the rule for fields outside of a oneof.
func (w *wire) number(field protowire.Number, n uint64) {
	if n != 0 {
		w.one(field, n)
	}
}

// one writes a number of a oneof.
func (w *wire) one(field protowire.Number, n uint64) {
	w.b = protowire.AppendTag(w.b, field, protowire.VarintType)
	w.b = protowire.AppendVarint(w.b, n)
}

func (w *wire) fixed64(field protowire.Number, n uint64) {
	if n != 0 {
		w.b = protowire.AppendTag(w.b, field, protowire.Fixed64Type)
		w.b = protowire.AppendFixed64(w.b, n)
	}
}

// bytes writes nothing for "". Strings must be valid UTF-8.
func (w *wire) bytes(field protowire.Number, s string) {
	if s != "" {
		w.text(field, s)
	}
}

// text writes a string of a oneof or of a map.
func (w *wire) text(field protowire.Number, s string) {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	w.b = protowire.AppendString(w.b, s)
}

// duration writes a google.protobuf.Duration.
func (w *wire) duration(field protowire.Number, d time.Duration) {
	at := w.open(field)
	w.number(1, uint64(d/time.Second))
	w.number(2, uint64(d%time.Second))
	w.close(at)
}

// eventBytes is room for an event with the labels of a pod on both sides.
const eventBytes = 512

// message is the event as a message of linkerd's service, with all that is in it
// as it goes over the wire, and so in what a message keeps of fields it does not
// know. Text that is not valid UTF-8, which a message cannot carry, is mended; the
// values of fields are bytes there and stay as they are.
func (e *Event) message() *pb.TapEvent {
	w := wire{make([]byte, 0, eventBytes)}
	w.event(e)
	m := &pb.TapEvent{}
	m.ProtoReflect().SetUnknown(w.b)
	return m
}

// watchMessage is the event as a message of gotower's own service.
func (e *Event) watchMessage() (*tappb.WatchResponse, error) {
	if e.Dropped > 0 {
		return &tappb.WatchResponse{What: &tappb.WatchResponse_Dropped{Dropped: e.Dropped}}, nil
	}
	w := wire{make([]byte, 0, eventBytes)}
	whole := w.open(1)
	at := w.open(1)
	w.event(e)
	w.close(at)
	if own := e.extras(); own != nil {
		var err error
		if w.b, err = (proto.MarshalOptions{}).MarshalAppend(w.b, own); err != nil {
			return nil, err
		}
	}
	w.close(whole)
	m := &tappb.WatchResponse{}
	m.ProtoReflect().SetUnknown(w.b)
	return m, nil
}

// extras are what an event has besides what is linkerd's; nil for most.
func (e *Event) extras() *tappb.Event {
	switch end := e.ResponseEnd; {
	case e.Open != nil:
		return &tappb.Event{Open: &tappb.ConnectionOpen{Id: e.ID.proto()}}
	case e.Close != nil:
		return &tappb.Event{Close: &tappb.ConnectionClose{
			Id: e.ID.proto(), SinceOpen: durationpb.New(e.Close.SinceOpen),
			Sent: e.Close.Sent, Received: e.Close.Received, Error: valid(e.Close.Err),
		}}
	case end != nil && (len(end.Explanation) > 0 || end.RequestBody != nil || end.ResponseBody != nil):
		return &tappb.Event{
			Explanation: nodesProto(end.Explanation), RequestBody: end.RequestBody.proto(), ResponseBody: end.ResponseBody.proto(),
		}
	}
	return nil
}

func (id StreamID) proto() *pb.TapEvent_Http_StreamId {
	return &pb.TapEvent_Http_StreamId{Base: id.Base, Stream: id.Stream}
}

// event writes the fields of a TapEvent.
func (w *wire) event(e *Event) {
	w.address(1, e.Source)
	w.address(2, e.Destination)
	w.labels(4, e.DestinationLabels)
	w.labels(5, e.SourceLabels)
	w.number(6, uint64(int32(e.Direction)))
	w.labels(7, e.RouteLabels)
	if e.RequestInit == nil && e.ResponseInit == nil && e.ResponseEnd == nil {
		return
	}
	http := w.open(3)
	switch {
	case e.RequestInit != nil:
		one := w.begin(1, e.ID)
		w.requestInit(e.RequestInit)
		w.close(one)
	case e.ResponseInit != nil:
		one := w.begin(2, e.ID)
		w.responseInit(e.ResponseInit)
		w.close(one)
	default:
		one := w.begin(3, e.ID)
		w.responseEnd(e.ResponseEnd)
		w.close(one)
	}
	w.close(http)
}

// begin opens a message that begins with an id.
func (w *wire) begin(field protowire.Number, id StreamID) (at int) {
	at = w.open(field)
	first := w.open(1)
	w.number(1, uint64(id.Base))
	w.number(2, id.Stream)
	w.close(first)
	return at
}

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
