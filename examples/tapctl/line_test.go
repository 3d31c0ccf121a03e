package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

func event(set func(*tap.Event)) tap.Event {
	e := tap.Event{
		Direction:         tap.Outbound,
		ID:                tap.StreamID{Base: 1, Stream: 2},
		Source:            netip.MustParseAddrPort("10.0.0.1:5000"),
		Destination:       netip.MustParseAddrPort("10.0.0.2:80"),
		SourceLabels:      map[string]string{"pod": "bot"},
		DestinationLabels: map[string]string{"pod": "web-0", "tls": "true"},
		RouteLabels:       map[string]string{"route": "vote"},
	}
	set(&e)
	return e
}

func TestLine(t *testing.T) {
	since, code, reset := 4*time.Millisecond, codes.Unknown, uint32(8)
	tests := []struct {
		want string
		set  func(*tap.Event)
	}{
		{
			"req id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true :method=GET :authority=web :path=/api/vote",
			func(e *tap.Event) {
				e.RequestInit = &tap.RequestInit{Method: "GET", Authority: "web", Path: "/api/vote"}
			},
		},
		{
			"rsp id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true :status=200 latency=1500µs",
			func(e *tap.Event) {
				e.ResponseInit = &tap.ResponseInit{Status: 200, SinceRequestInit: 1500 * time.Microsecond}
			},
		},
		{
			"end id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true grpc-status=Unknown duration=4000µs response-length=9B",
			func(e *tap.Event) {
				e.ResponseEnd = &tap.ResponseEnd{SinceResponseInit: &since, Bytes: 9, GRPCStatus: &code}
			},
		},
		{
			"end id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true reset-error=8 duration=7µs response-length=0B",
			func(e *tap.Event) {
				e.ResponseEnd = &tap.ResponseEnd{SinceRequestInit: 7 * time.Microsecond, ResetCode: &reset}
			},
		},
		{
			"end id=1:2 proxy=in  src=10.0.0.1:5000 dst=10.0.0.2:80 tls= duration=4000µs response-length=0B",
			func(e *tap.Event) {
				e.Direction = tap.Inbound
				e.ResponseEnd = &tap.ResponseEnd{SinceResponseInit: &since}
			},
		},
		{
			"open id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true",
			func(e *tap.Event) { e.Open = &tap.ConnectionOpen{} },
		},
		{
			`close id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true duration=3000000µs sent=5B received=7B error="reset\x1b"`,
			func(e *tap.Event) {
				e.Close = &tap.ConnectionClose{SinceOpen: 3 * time.Second, Sent: 5, Received: 7, Err: "reset\x1b"}
			},
		},
		{
			`req id=1:2 proxy=out src=10.0.0.1:5000 dst=10.0.0.2:80 tls=true :method=GET\x1b[2J :authority=web\n :path=/\u202e`,
			func(e *tap.Event) {
				e.RequestInit = &tap.RequestInit{Method: "GET\x1b[2J", Authority: "web\n", Path: "/\u202e"}
			},
		},
		{
			"unknown proxy=??? src=10.0.0.1:5000 dst=10.0.0.2:80 tls=",
			func(e *tap.Event) { e.Direction = 0 },
		},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, line(event(tt.set), false))
		require.Equal(t, tt.want+" src_pod=bot dst_pod=web-0 dst_tls=true rt_route=vote", line(event(tt.set), true))
	}
}

func TestWriteJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeJSON(&b, event(func(e *tap.Event) {
		e.RequestInit = &tap.RequestInit{Method: "GET", Path: "/", Headers: []tap.Field{{Name: "a", Value: "b"}, {Name: "bin", Value: "\xff"}}}
	})))
	require.JSONEq(t, `{
		"source": {"ip": "10.0.0.1", "port": 5000, "metadata": {"pod": "bot"}},
		"destination": {"ip": "10.0.0.2", "port": 80, "metadata": {"pod": "web-0", "tls": "true"}},
		"routeMeta": {"route": "vote"}, "proxyDirection": "OUTBOUND",
		"requestInitEvent": {"id": {"base": 1, "stream": 2}, "method": "GET", "scheme": "", "authority": "", "path": "/",
			"headers": [{"name": "a", "valueStr": "b"}, {"name": "bin", "valueBin": "/w=="}]}
	}`, b.String())

	b.Reset()
	code := codes.OK
	require.NoError(t, writeJSON(&b, event(func(e *tap.Event) {
		e.ResponseEnd = &tap.ResponseEnd{SinceRequestInit: 1500 * time.Millisecond, Bytes: 5, GRPCStatus: &code}
	})))
	require.Contains(t, b.String(), `"grpcStatusCode": 0`, "OK is a status too")
	require.Contains(t, b.String(), `"nanos": 500000000`)
	require.NotContains(t, b.String(), "resetErrorCode")
}

// Characters are escaped that JSON allows without an escape.
func TestWriteJSONEscapes(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeJSON(&b, event(func(e *tap.Event) {
		e.RouteLabels = map[string]string{"\u009b": "\x7f"}
		e.RequestInit = &tap.RequestInit{Path: "/\u009b2J\u202e\x7f", Headers: []tap.Field{{Name: "a", Value: "\U000e0041"}}}
	})))
	for _, want := range []string{`"\u009b": "\u007f"`, `"path": "/\u009b2J\u202e\u007f"`, `"valueStr": "\udb40\udc41"`} {
		require.Contains(t, b.String(), want)
	}
}

// Features that linkerd's tap does not have are fields of their own.
func TestWriteJSONGotowerFields(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeJSON(&b, event(func(e *tap.Event) { e.Open = &tap.ConnectionOpen{} })))
	require.Contains(t, b.String(), `"openEvent": {`)
	b.Reset()
	require.NoError(t, writeJSON(&b, event(func(e *tap.Event) {
		e.Close = &tap.ConnectionClose{SinceOpen: time.Second, Sent: 5, Received: 7, Err: "reset"}
	})))
	require.Contains(t, b.String(), `"received": 7`)
	require.Contains(t, b.String(), `"error": "reset"`)

	end := event(func(e *tap.Event) {
		e.ResponseEnd = &tap.ResponseEnd{
			RequestBody:  &tap.Body{Data: []byte("a\x1b\n"), Cut: true},
			ResponseBody: &tap.Body{Data: []byte("\xff")},
			Explanation: []layer.Node{{
				Name: "balance", State: layer.State{{Key: "pick", Value: "p2c"}}, Children: []layer.Node{{Name: "endpoint"}}, Next: &layer.Node{Name: "queue"},
			}},
		}
	})
	b.Reset()
	require.NoError(t, writeJSON(&b, end))
	require.Contains(t, b.String(), `"valueBin": "/w=="`)
	require.Contains(t, b.String(), `"cut": true`)
	require.Contains(t, b.String(), `"pick": "p2c"`)
	b.Reset()
	require.NoError(t, writeMore(&b, end))
	require.Equal(t, ""+
		"    request-body=\"a\\x1b\\n\" …\n"+
		"    response-body=\"\\xff\"\n"+
		"    balance pick=p2c\n"+
		"      endpoint\n"+
		"    queue\n", b.String())
	b.Reset()
	require.NoError(t, writeMore(&b, event(func(e *tap.Event) { e.RequestInit = &tap.RequestInit{} })))
	require.Empty(t, b.String())
}
