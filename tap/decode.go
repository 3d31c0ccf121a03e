package tap

import (
	"math"
	"net/netip"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// eventOf converts a message of linkerd's tap service to an Event. Missing and unknown
// values become zero.
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
	// A message holds one of the three parts, and the stream's ID is in it.
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

// requestInitOf converts linkerd's message about the beginning of a request.
func requestInitOf(m *pb.TapEvent_Http_RequestInit) *RequestInit {
	return &RequestInit{
		Method:    methodOf(m.GetMethod()),
		Scheme:    schemeOf(m.GetScheme()),
		Authority: m.GetAuthority(),
		Path:      m.GetPath(),
		Headers:   fieldsOf(m.GetHeaders()),
	}
}

// responseInitOf converts linkerd's message about the headers of a response.
func responseInitOf(m *pb.TapEvent_Http_ResponseInit) *ResponseInit {
	return &ResponseInit{
		SinceRequestInit: m.GetSinceRequestInit().AsDuration(),
		Status:           int(m.GetHttpStatus()),
		Headers:          fieldsOf(m.GetHeaders()),
	}
}

// responseEndOf converts linkerd's message about the end of a response.
func responseEndOf(m *pb.TapEvent_Http_ResponseEnd) *ResponseEnd {
	end := &ResponseEnd{
		SinceRequestInit: m.GetSinceRequestInit().AsDuration(),
		Bytes:            m.GetResponseBytes(),
		Trailers:         fieldsOf(m.GetTrailers()),
	}
	if d := m.GetSinceResponseInit(); d != nil {
		end.SinceResponseInit = new(d.AsDuration())
	}
	// A message has one of the two, or none if the response ended normally without gRPC.
	switch eos := m.GetEos().GetEnd().(type) {
	case *pb.Eos_GrpcStatusCode:
		end.GRPCStatus = new(codes.Code(eos.GrpcStatusCode))
	case *pb.Eos_ResetErrorCode:
		end.ResetCode = new(eos.ResetErrorCode)
	}
	return end
}

// fieldsOf converts headers. It returns nil if the message has none, and an empty list if they have no
// fields.
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

// tcpOf converts m to an AddrPort. It returns the zero AddrPort if m contains no IP. A port is
// cut to 16 bits, as in linkerd's proxy.
func tcpOf(m *netpb.TcpAddress) netip.AddrPort {
	ip, err := wire.IP(m.GetIp())
	if err != nil {
		return netip.AddrPort{}
	}
	return normalizeAddr(netip.AddrPortFrom(ip, uint16(m.GetPort()&math.MaxUint16)))
}

// metaOf returns the labels of an endpoint: nil if the message has no endpoint, and an empty map if that has no
// labels.
func metaOf(m *pb.TapEvent_EndpointMeta) map[string]string {
	if m == nil {
		return nil
	}
	return orEmpty(m.GetLabels())
}

// orEmpty returns labels, or an empty map for nil, because nil means unknown in an Event.
func orEmpty(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// methodOf returns the name of the HTTP method m, such as "GET". It returns "" if m is empty or
// an unknown number.
func methodOf(m *http_types.HttpMethod) string {
	switch m := m.GetType().(type) {
	case *http_types.HttpMethod_Registered_:
		return http_types.HttpMethod_Registered_name[int32(m.Registered)]
	case *http_types.HttpMethod_Unregistered:
		return m.Unregistered
	}
	return ""
}

// schemeOf returns the name of the URI scheme m in lower case. It returns "" if m is empty or an
// unknown number. An unregistered scheme, which m contains as a string, is returned unchanged.
func schemeOf(m *http_types.Scheme) string {
	switch m := m.GetType().(type) {
	case *http_types.Scheme_Registered_:
		return strings.ToLower(http_types.Scheme_Registered_name[int32(m.Registered)])
	case *http_types.Scheme_Unregistered:
		return m.Unregistered
	}
	return ""
}

// watchEventOf converts a message of gotower's tap service to an Event. Missing and unknown
// values become zero.
func watchEventOf(m *tappb.WatchResponse) Event {
	// A response reports either dropped events or one event.
	if n := m.GetDropped(); n > 0 {
		return Event{Dropped: n}
	}
	own := m.GetEvent()
	e := eventOf(own.GetHttp())
	var id *pb.TapEvent_Http_StreamId
	switch {
	case e.ResponseEnd != nil:
		e.ResponseEnd.Explanation = nodesOf(own.GetExplanation())
		e.ResponseEnd.RequestBody = bodyOf(own.GetRequestBody())
		e.ResponseEnd.ResponseBody = bodyOf(own.GetResponseBody())
		return e
	case e.RequestInit != nil || e.ResponseInit != nil:
		return e
	case own.GetOpen() != nil:
		id, e.Open = own.GetOpen().GetId(), &ConnectionOpen{}
	case own.GetClose() != nil:
		c := own.GetClose()
		id, e.Close = c.GetId(), &ConnectionClose{
			SinceOpen: c.GetSinceOpen().AsDuration(), Sent: c.GetSent(), Received: c.GetReceived(), Err: c.GetError(),
			Explanation: nodesOf(own.GetExplanation()),
		}
	}
	e.ID = StreamID{Base: id.GetBase(), Stream: id.GetStream()}
	return e
}

// bodyOf converts a message of gotower's tap service to a Body, which is nil if the message is.
func bodyOf(m *tappb.Body) *Body {
	if m == nil {
		return nil
	}
	return &Body{Data: m.GetData(), Cut: m.GetCut()}
}

// nodesOf converts the description of layers, with all nodes below them.
func nodesOf(ms []*tappb.Node) []layer.Node {
	if len(ms) == 0 {
		return nil
	}
	out := make([]layer.Node, 0, len(ms))
	for _, m := range ms {
		n := layer.Node{Name: m.GetName(), Children: nodesOf(m.GetChildren())}
		for _, a := range m.GetState() {
			n.State = append(n.State, layer.Attr{Key: a.GetKey(), Value: a.GetValue()})
		}
		out = append(out, n)
	}
	return out
}
