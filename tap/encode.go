package tap

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// proto converts e to a message of linkerd's tap service. Bytes that are not valid UTF-8 are
// replaced, because text fields in messages cannot carry them.
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

// proto converts r to linkerd's message about the beginning of a request. id identifies the request.
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

// proto converts r to linkerd's message about the headers of a response. id identifies the request.
func (r *ResponseInit) proto(id *pb.TapEvent_Http_StreamId) *pb.TapEvent_Http_ResponseInit {
	return &pb.TapEvent_Http_ResponseInit{
		Id:               id,
		SinceRequestInit: durationpb.New(r.SinceRequestInit),
		HttpStatus:       uint32(r.Status),
		Headers:          fieldsProto(r.Headers),
	}
}

// proto converts r to linkerd's message about the end of a response. id identifies the request.
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
	switch { // a message has one of them
	case r.ResetCode != nil:
		m.Eos.End = &pb.Eos_ResetErrorCode{ResetErrorCode: *r.ResetCode}
	case r.GRPCStatus != nil:
		m.Eos.End = &pb.Eos_GrpcStatusCode{GrpcStatusCode: uint32(*r.GRPCStatus)}
	}
	return m
}

// fieldsProto converts headers to the message from which fieldsOf reads them.
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

// tcpProto converts an address. It returns nil for an unknown one.
func tcpProto(a netip.AddrPort) *netpb.TcpAddress {
	a = normalizeAddr(a)
	if !a.IsValid() {
		return nil
	}
	return wire.TCP(a)
}

// metaProto converts the labels of an endpoint to the message from which metaOf reads them.
func metaProto(labels map[string]string) *pb.TapEvent_EndpointMeta {
	if labels == nil {
		return nil
	}
	return &pb.TapEvent_EndpointMeta{Labels: labelsProto(labels)}
}

// labelsProto returns labels with invalid UTF-8 replaced, which a message cannot carry. Usually it
// returns the same map.
func labelsProto(labels map[string]string) map[string]string {
	// Invalid texts are rare, so the map is copied only if there is one.
	isValid := true
	for k, v := range labels {
		isValid = isValid && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if isValid {
		return labels
	}
	out := make(map[string]string, len(labels))
	for k, v := range labels {
		out[valid(k)] = valid(v)
	}
	return out
}

// methodProto converts the name of an HTTP method to the message from which methodOf reads it.
func methodProto(name string) *http_types.HttpMethod {
	if name == "" {
		return nil
	}
	return match.Method(valid(name)).GetHttp().GetMethod()
}

// schemeProto converts the name of a URI scheme to the message from which schemeOf reads it.
func schemeProto(name string) *http_types.Scheme {
	if name == "" {
		return nil
	}
	return match.Scheme(valid(name)).GetHttp().GetScheme()
}

// watchProto converts e to a message of gotower's tap service.
func (e *Event) watchProto() *tappb.WatchResponse {
	// Dropped is only set in an event that has nothing else.
	if e.Dropped > 0 {
		return &tappb.WatchResponse{What: &tappb.WatchResponse_Dropped{Dropped: e.Dropped}}
	}
	// The parts that linkerd's API has are in Http, and the others beside it.
	m := &tappb.Event{Http: e.proto()}
	id := &pb.TapEvent_Http_StreamId{Base: e.ID.Base, Stream: e.ID.Stream}
	switch {
	case e.Open != nil:
		m.Open = &tappb.ConnectionOpen{Id: id}
	case e.Close != nil:
		m.Close = &tappb.ConnectionClose{
			Id: id, SinceOpen: durationpb.New(e.Close.SinceOpen),
			Sent: e.Close.Sent, Received: e.Close.Received, Error: valid(e.Close.Err),
		}
		m.Explanation = nodesProto(e.Close.Explanation)
	case e.ResponseEnd != nil:
		m.Explanation = nodesProto(e.ResponseEnd.Explanation)
		m.RequestBody, m.ResponseBody = e.ResponseEnd.RequestBody.proto(), e.ResponseEnd.ResponseBody.proto()
	}
	return &tappb.WatchResponse{What: &tappb.WatchResponse_Event{Event: m}}
}

// proto converts b to the message from which bodyOf reads it.
func (b *Body) proto() *tappb.Body {
	if b == nil {
		return nil
	}
	return &tappb.Body{Data: b.Data, Cut: b.Cut}
}

// nodesProto converts the description of layers to the messages from which nodesOf reads it.
func nodesProto(nodes []layer.Node) []*tappb.Node {
	out := make([]*tappb.Node, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, nodeProto(n))
	}
	return out
}

// nodeProto converts n to a message. The inner node n.Next becomes the last child, because
// a message has no field for it.
func nodeProto(n layer.Node) *tappb.Node {
	m := &tappb.Node{Name: valid(n.Name), Children: nodesProto(n.Children)}
	for _, a := range n.State {
		m.State = append(m.State, &tappb.Attribute{Key: valid(a.Key), Value: valid(fmt.Sprint(a.Value))})
	}
	if n.Next != nil {
		m.Children = append(m.Children, nodeProto(*n.Next))
	}
	return m
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
