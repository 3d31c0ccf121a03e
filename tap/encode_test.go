package tap

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// through sends e over the wire.
func through(t require.TestingT, e Event) Event {
	return eventOf(received(t, e.proto()))
}

// received is m as it arrives.
func received[M proto.Message](t require.TestingT, m M) M {
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	out := m.ProtoReflect().New().Interface().(M)
	require.NoError(t, proto.Unmarshal(b, out))
	return out
}

func optional[T any](t *rapid.T, name string, g *rapid.Generator[T]) *T {
	return rapid.Ptr(g, true).Draw(t, name)
}

var genEvent = rapid.Custom(func(t *rapid.T) Event {
	labels := func(name string) map[string]string {
		return rapid.OneOf(
			rapid.Just[map[string]string](nil), rapid.MapOfN(rapid.String(), rapid.String(), 0, 3),
		).Draw(t, name)
	}
	addr := func(name string) netip.AddrPort {
		ip := rapid.OneOf(
			rapid.Just(netip.Addr{}),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 4, 4), func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }),
		).Draw(t, name)
		return normalizeAddr(netip.AddrPortFrom(ip, rapid.Uint16().Draw(t, name+" port")))
	}
	fields := func() []Field {
		return rapid.OneOf(rapid.Just[[]Field](nil), rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Field {
			return Field{rapid.String().Draw(t, "name"), string(rapid.SliceOf(rapid.Byte()).Draw(t, "value"))}
		}), 0, 3)).Draw(t, "fields")
	}
	since := rapid.Map(rapid.Int64Range(0, int64(time.Hour)), func(n int64) time.Duration { return time.Duration(n) })
	e := Event{
		Direction: Direction(rapid.IntRange(0, 2).Draw(t, "direction")),
		Source:    addr("source"), Destination: addr("destination"),
		SourceLabels: labels("source labels"), DestinationLabels: labels("destination labels"), RouteLabels: labels("route labels"),
	}
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	if kind > 0 {
		e.ID = StreamID{rapid.Uint32().Draw(t, "base"), rapid.Uint64().Draw(t, "stream")}
	}
	switch kind {
	case 1:
		e.RequestInit = &RequestInit{
			Method: rapid.OneOf(genMethod, rapid.String()).Draw(t, "method"), Scheme: rapid.OneOf(genScheme, rapid.String()).Draw(t, "scheme"),
			Authority: rapid.String().Draw(t, "authority"), Path: rapid.String().Draw(t, "path"), Headers: fields(),
		}
	case 2:
		e.ResponseInit = &ResponseInit{since.Draw(t, "since"), rapid.IntRange(0, 999).Draw(t, "status"), fields()}
	case 3:
		e.ResponseEnd = &ResponseEnd{
			SinceRequestInit: since.Draw(t, "since"), SinceResponseInit: optional(t, "since response", since),
			Bytes: rapid.Uint64().Draw(t, "bytes"), Trailers: fields(),
		}
		if e.ResponseEnd.GRPCStatus = optional(t, "grpc", rapid.Map(rapid.Uint32(), func(n uint32) codes.Code { return codes.Code(n) })); e.ResponseEnd.GRPCStatus == nil {
			e.ResponseEnd.ResetCode = optional(t, "reset", rapid.Uint32())
		}
	}
	return e
})

func TestEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEvent.Draw(t, "event")
		require.Equal(t, e, through(t, e))
	})
}

// The field numbers and meanings of wire.md §5, written down by hand.
func TestEventWireFormat(t *testing.T) {
	e := Event{
		Direction: Inbound, ID: StreamID{Base: 3, Stream: 9},
		Source:       netip.MustParseAddrPort("10.0.0.1:4143"),
		Destination:  netip.MustParseAddrPort("[2001:db8::1]:80"),
		SourceLabels: map[string]string{"tls": "loopback"},
		RequestInit:  &RequestInit{Method: "POST", Scheme: "https", Authority: "web", Path: "/p", Headers: []Field{{"a", "\xff"}}},
	}
	require.True(t, proto.Equal(&pb.TapEvent{
		Source:         &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 10<<24 | 1}}, Port: 4143},
		SourceMeta:     &pb.TapEvent_EndpointMeta{Labels: map[string]string{"tls": "loopback"}},
		Destination:    &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{First: 0x20010db8 << 32, Last: 1}}}, Port: 80},
		ProxyDirection: pb.TapEvent_INBOUND,
		Event: &pb.TapEvent_Http_{Http: &pb.TapEvent_Http{Event: &pb.TapEvent_Http_RequestInit_{RequestInit: &pb.TapEvent_Http_RequestInit{
			Id:        &pb.TapEvent_Http_StreamId{Base: 3, Stream: 9},
			Method:    &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_POST}},
			Scheme:    &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}},
			Authority: "web", Path: "/p",
			Headers: &http_types.Headers{Headers: []*http_types.Headers_Header{{Name: "a", Value: []byte{0xff}}}},
		}}}},
	}, received(t, e.proto())))

	end := Event{ResponseEnd: &ResponseEnd{SinceRequestInit: 1500 * time.Millisecond}}
	m := received(t, end.proto()).GetHttp().GetResponseEnd()
	require.EqualValues(t, 1, m.GetSinceRequestInit().GetSeconds())
	require.EqualValues(t, 5e8, m.GetSinceRequestInit().GetNanos())
	require.Nil(t, m.GetSinceResponseInit(), "no response headers")
	require.NotNil(t, m.GetEos())
	require.Nil(t, m.GetEos().GetEnd(), "eos without a member")
}

func TestEventInvalidUTF8(t *testing.T) {
	bad := "a\xffb"
	got := through(t, Event{
		SourceLabels: map[string]string{bad: bad},
		RequestInit:  &RequestInit{Method: bad, Scheme: bad, Authority: bad, Path: bad, Headers: []Field{{bad, bad}}},
	})
	mended := "a\uFFFDb"
	require.Equal(t, Event{
		SourceLabels: map[string]string{mended: mended},
		RequestInit:  &RequestInit{Method: mended, Scheme: mended, Authority: mended, Path: mended, Headers: []Field{{mended, bad}}},
	}, got)
}

func TestUnknownMessages(t *testing.T) {
	require.Equal(t, Event{}, eventOf(nil))
	require.Equal(t, Event{}, eventOf(&pb.TapEvent{Event: &pb.TapEvent_Http_{}}))
	got := eventOf(&pb.TapEvent{
		Source:         &netpb.TcpAddress{Port: 80},
		Destination:    &netpb.TcpAddress{Ip: ipv4(), Port: 65536 + 80},
		ProxyDirection: 9,
		Event: &pb.TapEvent_Http_{Http: &pb.TapEvent_Http{Event: &pb.TapEvent_Http_RequestInit_{RequestInit: &pb.TapEvent_Http_RequestInit{
			Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: 99}},
			Scheme: &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: 99}},
		}}}},
	})
	require.Equal(t, Event{
		Direction: 9, Destination: netip.MustParseAddrPort("10.0.0.0:80"), RequestInit: &RequestInit{},
	}, got, "an address without an IP is dropped, a port cut to 16 bits")
}

// Any bytes of a server become an event, which can be encoded again and stays the same.
func FuzzEvent(f *testing.F) {
	for _, e := range []Event{
		{Direction: Inbound, Source: clientAddr, SourceLabels: podLabels, RequestInit: &RequestInit{Method: "PURGE", Scheme: "coap", Headers: []Field{{"a", "\xff"}}}},
		{Destination: netip.MustParseAddrPort("[fd00::1]:1"), RouteLabels: podLabels, ResponseInit: &ResponseInit{Status: 200}},
		{ResponseEnd: &ResponseEnd{SinceResponseInit: new(time.Second), GRPCStatus: new(codes.OK)}},
		{ResponseEnd: &ResponseEnd{ResetCode: new(uint32(8)), Trailers: []Field{}}},
	} {
		b, err := proto.Marshal(e.proto())
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(pb.TapEvent)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		e := eventOf(m)
		require.GreaterOrEqual(t, e.weight(), int64(0))
		again := through(t, e)
		if e.RequestInit == nil && e.ResponseInit == nil && e.ResponseEnd == nil {
			e.ID = StreamID{}
		}
		require.Equal(t, e, again)
	})
}

// throughWatch sends e over gotower's own wire.
func throughWatch(t require.TestingT, e Event) Event {
	return watchEventOf(receivedOf(t, e))
}

// receivedOf is e as it arrives.
func receivedOf(t require.TestingT, e Event) *tappb.WatchResponse {
	return received(t, e.watchProto())
}

func genNodes(depth int) *rapid.Generator[[]layer.Node] {
	return rapid.Custom(func(t *rapid.T) []layer.Node {
		var nodes []layer.Node
		for range rapid.IntRange(0, 3).Draw(t, "nodes") {
			n := layer.Node{Name: rapid.String().Draw(t, "name")}
			for range rapid.IntRange(0, 2).Draw(t, "state") {
				n.State = append(n.State, layer.Attr{Key: rapid.String().Draw(t, "key"), Value: rapid.String().Draw(t, "value")})
			}
			if depth > 0 {
				n.Children = genNodes(depth-1).Draw(t, "children")
			}
			nodes = append(nodes, n)
		}
		return nodes
	})
}

var genWatchEvent = rapid.Custom(func(t *rapid.T) Event {
	e := genEvent.Draw(t, "event")
	body := rapid.Custom(func(t *rapid.T) Body {
		return Body{Data: rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "data"), Cut: rapid.Bool().Draw(t, "cut")}
	})
	switch {
	case e.ResponseEnd != nil:
		e.ResponseEnd.Explanation = genNodes(2).Draw(t, "explanation")
		e.ResponseEnd.RequestBody = optional(t, "request body", body)
		e.ResponseEnd.ResponseBody = optional(t, "response body", body)
	case e.RequestInit != nil || e.ResponseInit != nil:
	case rapid.Bool().Draw(t, "told of drops"):
		return Event{Dropped: rapid.Uint64Min(1).Draw(t, "dropped")}
	default:
		e.ID = StreamID{rapid.Uint32().Draw(t, "base"), rapid.Uint64().Draw(t, "stream")}
		if rapid.Bool().Draw(t, "open") {
			e.Open = &ConnectionOpen{}
			return e
		}
		e.Close = &ConnectionClose{
			SinceOpen: time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "since")),
			Sent:      rapid.Uint64().Draw(t, "sent"), Received: rapid.Uint64().Draw(t, "received"), Err: rapid.String().Draw(t, "err"),
		}
	}
	return e
})

func TestWatchEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genWatchEvent.Draw(t, "event")
		require.Equal(t, e, throughWatch(t, e))
	})
}

// An event of Watch contains the unchanged event of linkerd's service.
func TestWatchEventContainsEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEvent.Draw(t, "event")
		require.True(t, proto.Equal(received(t, e.proto()), receivedOf(t, e).GetEvent().GetHttp()))
	})
}

func TestWatchEventWireFormat(t *testing.T) {
	e := Event{
		Direction: Outbound, ID: StreamID{Base: 2, Stream: 7},
		ResponseEnd: &ResponseEnd{
			SinceRequestInit: time.Second, SinceResponseInit: new(time.Millisecond), Bytes: 3, GRPCStatus: new(codes.OK),
			Explanation:  []layer.Node{{Name: "balance", State: layer.State{{Key: "chosen", Value: serverAddr}}, Children: []layer.Node{{Name: "endpoint"}}}},
			ResponseBody: &Body{Data: []byte("\xff"), Cut: true},
		},
	}
	require.True(t, proto.Equal(&tappb.WatchResponse{What: &tappb.WatchResponse_Event{Event: &tappb.Event{
		Http: received(t, e.proto()),
		Explanation: []*tappb.Node{{
			Name: "balance", State: []*tappb.Attribute{{Key: "chosen", Value: "10.1.2.3:8080"}}, Children: []*tappb.Node{{Name: "endpoint"}},
		}},
		ResponseBody: &tappb.Body{Data: []byte("\xff"), Cut: true},
	}}}, receivedOf(t, e)))

	e = Event{Direction: Inbound, ID: StreamID{Base: 2, Stream: 8}, Close: &ConnectionClose{SinceOpen: time.Minute, Sent: 1, Received: 2, Err: "broken\xff"}}
	require.True(t, proto.Equal(&tappb.WatchResponse{What: &tappb.WatchResponse_Event{Event: &tappb.Event{
		Http: &pb.TapEvent{ProxyDirection: pb.TapEvent_INBOUND},
		Close: &tappb.ConnectionClose{
			Id: &pb.TapEvent_Http_StreamId{Base: 2, Stream: 8}, SinceOpen: durationpb.New(time.Minute), Sent: 1, Received: 2, Error: "broken\uFFFD",
		},
	}}}, receivedOf(t, e)))
	require.True(t, proto.Equal(&tappb.WatchResponse{What: &tappb.WatchResponse_Dropped{Dropped: 4}}, receivedOf(t, Event{Dropped: 4})))
	require.EqualValues(t, len("broken\xff"), e.weight())
}

func TestUnknownWatchMessages(t *testing.T) {
	for _, m := range []*tappb.WatchResponse{
		nil, {}, {What: &tappb.WatchResponse_Dropped{}}, {What: &tappb.WatchResponse_Event{}}, {What: &tappb.WatchResponse_Event{Event: &tappb.Event{}}},
	} {
		require.Equal(t, Event{}, watchEventOf(m))
	}
}

// Any bytes of a server become an event, which can be encoded again and stays the same.
func FuzzWatchEvent(f *testing.F) {
	for _, e := range []Event{
		{Dropped: 3}, {Open: &ConnectionOpen{}, ID: StreamID{1, 2}}, {Close: &ConnectionClose{Err: "e"}},
		{ResponseEnd: &ResponseEnd{Explanation: []layer.Node{{Name: "n", Children: []layer.Node{{}}}}, RequestBody: &Body{Cut: true}}},
	} {
		b, err := proto.Marshal(e.watchProto())
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(tappb.WatchResponse)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		e := watchEventOf(m)
		require.GreaterOrEqual(t, e.weight(), int64(0))
		again := throughWatch(t, e)
		if e.RequestInit == nil && e.ResponseInit == nil && e.ResponseEnd == nil && e.Open == nil && e.Close == nil {
			e.ID = StreamID{}
		}
		require.Equal(t, e, again)
	})
}

// Any request is either rejected with a reason or served.
func FuzzTerms(f *testing.F) {
	for _, req := range []*tappb.WatchRequest{
		{}, {Sample: 2}, {Headers: []*tappb.HeaderMatch{exactly("a", "b"), having("cookie", false)}},
		{Response: &tappb.ResponseMatch{MinStatus: 1, MaxStatus: 2, GrpcStatus: []uint32{3}}, Duration: durationpb.New(1), BodyBytes: 9},
	} {
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := new(tappb.WatchRequest)
		if proto.Unmarshal(b, req) != nil {
			return
		}
		reg := NewRegistry(WithBodies(10, asItIs))
		terms, err := reg.terms(req)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "tap: "))
			return
		}
		require.Positive(t, terms.limit)
		require.LessOrEqual(t, terms.body, 10)
		require.GreaterOrEqual(t, terms.duration, time.Duration(0))
		w, err := reg.watch(terms)
		require.NoError(t, err)
		send(t, stand(reg, respond("x")), get("/"))
		require.LessOrEqual(t, len(events(w)), 3)
		reg.close(w)
	})
}
