package tap

import (
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

// proto is the event as a message. Text that is not valid UTF-8, which a
// message cannot carry, is mended; the values of fields are bytes there and
// stay as they are.
func (e *Event) proto() *pb.TapEvent {
	m := &pb.TapEvent{
		Source:          tcpProto(e.Source),
		SourceMeta:      metaProto(e.SourceLabels),
		Destination:     tcpProto(e.Destination),
		DestinationMeta: metaProto(e.DestinationLabels),
		ProxyDirection:  pb.TapEvent_ProxyDirection(e.Direction),
	}
	if e.RouteLabels != nil {
		m.RouteMeta = &pb.TapEvent_RouteMeta{Labels: labelsProto(e.RouteLabels)}
	}
	id := &pb.TapEvent_Http_StreamId{Base: e.ID.Base, Stream: e.ID.Stream}
	http := &pb.TapEvent_Http{}
	switch {
	case e.RequestInit != nil:
		http.Event = &pb.TapEvent_Http_RequestInit_{RequestInit: e.RequestInit.proto(id)}
	case e.ResponseInit != nil:
		http.Event = &pb.TapEvent_Http_ResponseInit_{ResponseInit: e.ResponseInit.proto(id)}
	case e.ResponseEnd != nil:
		http.Event = &pb.TapEvent_Http_ResponseEnd_{ResponseEnd: e.ResponseEnd.proto(id)}
	default:
		return m
	}
	m.Event = &pb.TapEvent_Http_{Http: http}
	return m
}

func (r *RequestInit) proto(id *pb.TapEvent_Http_StreamId) *pb.TapEvent_Http_RequestInit {
	return &pb.TapEvent_Http_RequestInit{
		Id:        id,
		Method:    methodProto(r.Method),
		Scheme:    schemeProto(r.Scheme),
		Authority: valid(r.Authority),
		Path:      valid(r.Path),
		Headers:   fieldsProto(r.Headers),
	}
}

func (r *ResponseInit) proto(id *pb.TapEvent_Http_StreamId) *pb.TapEvent_Http_ResponseInit {
	return &pb.TapEvent_Http_ResponseInit{
		Id:               id,
		SinceRequestInit: durationpb.New(r.SinceRequestInit),
		HttpStatus:       uint32(r.Status),
		Headers:          fieldsProto(r.Headers),
	}
}

func (r *ResponseEnd) proto(id *pb.TapEvent_Http_StreamId) *pb.TapEvent_Http_ResponseEnd {
	m := &pb.TapEvent_Http_ResponseEnd{
		Id:               id,
		SinceRequestInit: durationpb.New(r.SinceRequestInit),
		ResponseBytes:    r.Bytes,
		Eos:              &pb.Eos{},
		Trailers:         fieldsProto(r.Trailers),
	}
	if r.SinceResponseInit != nil {
		m.SinceResponseInit = durationpb.New(*r.SinceResponseInit)
	}
	switch { // a message holds one of them
	case r.ResetCode != nil:
		m.Eos.End = &pb.Eos_ResetErrorCode{ResetErrorCode: *r.ResetCode}
	case r.GRPCStatus != nil:
		m.Eos.End = &pb.Eos_GrpcStatusCode{GrpcStatusCode: uint32(*r.GRPCStatus)}
	}
	return m
}

// eventOf is the event of a message, as far as this package knows what is in
// it. No message is wrong: what is missing or unknown is zero.
func eventOf(m *pb.TapEvent) Event {
	e := Event{
		Direction:         Direction(m.GetProxyDirection()),
		Source:            tcpOf(m.GetSource()),
		Destination:       tcpOf(m.GetDestination()),
		SourceLabels:      metaOf(m.GetSourceMeta()),
		DestinationLabels: metaOf(m.GetDestinationMeta()),
	}
	if r := m.GetRouteMeta(); r != nil {
		e.RouteLabels = orEmpty(r.GetLabels())
	}
	var id *pb.TapEvent_Http_StreamId
	switch m := m.GetHttp().GetEvent().(type) {
	case *pb.TapEvent_Http_RequestInit_:
		id, e.RequestInit = m.RequestInit.GetId(), requestInitOf(m.RequestInit)
	case *pb.TapEvent_Http_ResponseInit_:
		id, e.ResponseInit = m.ResponseInit.GetId(), responseInitOf(m.ResponseInit)
	case *pb.TapEvent_Http_ResponseEnd_:
		id, e.ResponseEnd = m.ResponseEnd.GetId(), responseEndOf(m.ResponseEnd)
	}
	e.ID = StreamID{Base: id.GetBase(), Stream: id.GetStream()}
	return e
}

func requestInitOf(m *pb.TapEvent_Http_RequestInit) *RequestInit {
	return &RequestInit{
		Method:    methodOf(m.GetMethod()),
		Scheme:    schemeOf(m.GetScheme()),
		Authority: m.GetAuthority(),
		Path:      m.GetPath(),
		Headers:   fieldsOf(m.GetHeaders()),
	}
}

func responseInitOf(m *pb.TapEvent_Http_ResponseInit) *ResponseInit {
	return &ResponseInit{
		SinceRequestInit: m.GetSinceRequestInit().AsDuration(),
		Status:           int(m.GetHttpStatus()),
		Headers:          fieldsOf(m.GetHeaders()),
	}
}

func responseEndOf(m *pb.TapEvent_Http_ResponseEnd) *ResponseEnd {
	end := &ResponseEnd{
		SinceRequestInit: m.GetSinceRequestInit().AsDuration(),
		Bytes:            m.GetResponseBytes(),
		Trailers:         fieldsOf(m.GetTrailers()),
	}
	if d := m.GetSinceResponseInit(); d != nil {
		end.SinceResponseInit = new(d.AsDuration())
	}
	switch eos := m.GetEos().GetEnd().(type) {
	case *pb.Eos_GrpcStatusCode:
		end.GRPCStatus = new(codes.Code(eos.GrpcStatusCode))
	case *pb.Eos_ResetErrorCode:
		end.ResetCode = new(eos.ResetErrorCode)
	}
	return end
}

func fieldsProto(fields []Field) *http_types.Headers {
	if fields == nil {
		return nil
	}
	m := &http_types.Headers{}
	for _, f := range fields {
		m.Headers = append(m.Headers, &http_types.Headers_Header{Name: valid(f.Name), Value: []byte(f.Value)})
	}
	return m
}

func fieldsOf(m *http_types.Headers) []Field {
	if m == nil {
		return nil
	}
	fields := []Field{}
	for _, h := range m.GetHeaders() {
		fields = append(fields, Field{Name: h.GetName(), Value: string(h.GetValue())})
	}
	return fields
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
