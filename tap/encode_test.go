package tap

import (
	"math"
	"net/netip"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// sameBytes compares two messages as they go over the wire. The order of what is
// in a map is not fixed there; all else is.
func sameBytes(t require.TestingT, want, got proto.Message) {
	naive, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	require.NoError(t, err)
	sent, err := proto.Marshal(got)
	require.NoError(t, err)
	require.Len(t, sent, len(naive))
	arrived := want.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(sent, arrived))
	require.Empty(t, arrived.ProtoReflect().GetUnknown())
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(arrived)
	require.NoError(t, err)
	require.Equal(t, naive, again)
}

// atMostOne has no map in which there is an order.
func atMostOne(e Event) bool {
	return len(e.SourceLabels) < 2 && len(e.DestinationLabels) < 2 && len(e.RouteLabels) < 2
}

func sameAsNaive(t require.TestingT, e Event) {
	sameBytes(t, e.proto(), e.message())
	m, err := e.watchMessage()
	require.NoError(t, err)
	sameBytes(t, e.watchProto(), m)
	if !atMostOne(e) {
		return
	}
	for want, got := range map[proto.Message]proto.Message{e.proto(): e.message(), e.watchProto(): m} {
		naive, err := proto.Marshal(want)
		require.NoError(t, err)
		sent, err := proto.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, naive, sent)
	}
}

// What is sent is to the byte what package proto makes of the same message.
func TestEncodingIsThatOfPackageProto(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { sameAsNaive(t, genWatchEvent.Draw(t, "event")) })
}

func TestEncodingOfWhatIsRare(t *testing.T) {
	long := string(make([]byte, 1<<20))
	for name, e := range map[string]Event{
		"nothing":            {},
		"unknown direction":  {Direction: -1, ID: StreamID{1, 1}},
		"back in time":       {ResponseEnd: &ResponseEnd{SinceRequestInit: -1500 * time.Millisecond, SinceResponseInit: new(time.Duration(math.MinInt64))}},
		"for ever":           {ResponseInit: &ResponseInit{SinceRequestInit: math.MaxInt64, Status: -1}},
		"status of 0":        {ResponseEnd: &ResponseEnd{GRPCStatus: new(codes.OK), ResetCode: new(uint32(0))}},
		"empty labels":       {SourceLabels: map[string]string{}, RouteLabels: map[string]string{"": ""}},
		"no fields":          {RequestInit: &RequestInit{Method: "GET", Scheme: "http", Headers: []Field{}}},
		"empty field":        {RequestInit: &RequestInit{Headers: []Field{{}}}},
		"long":               {SourceLabels: map[string]string{"a": long}, RequestInit: &RequestInit{Path: long, Headers: []Field{{"a", long}, {"b", long}}}},
		"not UTF-8":          {SourceLabels: map[string]string{"\xff": "\xff"}, RequestInit: &RequestInit{"\xff", "\xff", "\xff", "\xff", []Field{{"\xff", "\xff"}}}},
		"addresses of zeros": {Source: netip.MustParseAddrPort("0.0.0.0:0"), Destination: netip.MustParseAddrPort("[::]:0")},
		"mapped":             {Source: netip.MustParseAddrPort("[::ffff:1.2.3.4]:65535"), Destination: netip.MustParseAddrPort("[fe80::1%eth0]:1")},
		"empty bodies":       {ResponseEnd: &ResponseEnd{RequestBody: &Body{}, ResponseBody: &Body{Data: []byte(long)}}},
		"an open connection": {Open: &ConnectionOpen{}, ID: StreamID{math.MaxUint32, math.MaxUint64}, SourceLabels: podLabels},
		"drops":              {Dropped: math.MaxUint64, Direction: Inbound},
	} {
		t.Run(name, func(t *testing.T) { sameAsNaive(t, e) })
	}
	for n := 120; n < 140; n++ { // where a length takes another byte, at several depths
		sameAsNaive(t, Event{RequestInit: &RequestInit{Path: long[:n]}})
		sameAsNaive(t, Event{RequestInit: &RequestInit{Headers: []Field{{"a", long[:n]}}}})
		sameAsNaive(t, Event{RequestInit: &RequestInit{Path: long[:n+1<<14-128]}})
	}
}

// Whatever event there is, it is sent as package proto would send it.
func FuzzEncoding(f *testing.F) {
	for _, e := range []Event{
		{Direction: Inbound, Source: clientAddr, Destination: serverAddr, SourceLabels: podLabels, RequestInit: &RequestInit{Method: "PURGE", Scheme: "coap", Headers: []Field{{"a", "\xff"}}}},
		{ResponseInit: &ResponseInit{Status: 200, SinceRequestInit: time.Second}},
		{ResponseEnd: &ResponseEnd{SinceResponseInit: new(time.Second), GRPCStatus: new(codes.OK), Explanation: []layer.Node{{Name: "n"}}}},
		{Close: &ConnectionClose{Err: "e"}},
	} {
		b, err := proto.Marshal(e.watchProto())
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(tappb.WatchResponse)
		if proto.Unmarshal(b, m) == nil {
			sameAsNaive(t, watchEventOf(m))
		}
		linkerds := new(pb.TapEvent)
		if proto.Unmarshal(b, linkerds) == nil {
			sameAsNaive(t, eventOf(linkerds))
		}
	})
}

// An event takes two allocations: its bytes, and the message that holds them.
func TestEncodingAllocatesTwice(t *testing.T) {
	for _, e := range shownOf(t, true) {
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = e.message() }), 2.0)
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = e.watchMessage() }), 2.0)
	}
}
