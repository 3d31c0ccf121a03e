package tap

import (
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

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
