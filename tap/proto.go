package tap

import (
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
)

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
