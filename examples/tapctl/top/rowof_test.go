package top

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// Each request belongs to the row that tap counts it in, and to no other row.
func TestRowOfHas(t *testing.T) {
	long := "/" + strings.Repeat("x", 300)
	addr := netip.MustParseAddrPort
	events := []tap.Event{
		{Direction: tap.Outbound, Source: addr("10.0.0.1:5"), Destination: addr("10.0.0.2:80"), RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}},
		{Direction: tap.Inbound, Source: addr("10.0.0.1:5"), Destination: addr("10.0.0.2:80"), RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}},
		{Direction: tap.Outbound, Source: addr("10.0.0.1:5"), Destination: addr("[::1]:80"), RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}},
		{Direction: tap.Outbound, Destination: addr("10.0.0.2:80"), RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}},
		{Direction: tap.Inbound, Source: addr("10.0.0.1:5"), RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}},
		{Direction: tap.Outbound, DestinationLabels: map[string]string{"pod": "web-0"}, RequestInit: &tap.RequestInit{Method: "POST", Path: long}},
		{
			Direction: tap.Outbound, SourceLabels: map[string]string{"pod": "bot"}, DestinationLabels: map[string]string{"pod": "web-0"},
			RouteLabels: map[string]string{"route": "vote"}, RequestInit: &tap.RequestInit{Method: "GET", Path: "/vote"},
		},
	}
	out, in, cut := pb.TapEvent_OUTBOUND, pb.TapEvent_INBOUND, long[:256]
	rows := []*tappb.Row{
		{Direction: out, Source: "10.0.0.1", Destination: "10.0.0.2:80", Method: "GET", Path: "/"},
		{Direction: in, Source: "10.0.0.1", Destination: "10.0.0.2:80", Method: "GET", Path: "/"},
		{Direction: out, Source: "10.0.0.1", Destination: "[::1]:80", Method: "GET", Path: "/"},
		{Direction: out, Source: "me", Destination: "10.0.0.2:80", Method: "GET", Path: "/"},
		{Direction: in, Source: "10.0.0.1", Destination: "me", Method: "GET", Path: "/"},
		{Direction: out, Source: "me", Destination: "web-0", Method: "POST", Path: cut},
		{Direction: out, Source: "bot", Destination: "web-0", Method: "GET", Path: "/vote"},
	}
	for _, routes := range []bool{false, true} {
		for i, row := range rows {
			if row = proto.CloneOf(row); routes {
				row.Method, row.Path, row.Route = "", "", cmp.Or(events[i].RouteLabels["route"], "[DEFAULT]")
			}
			for j, other := range events {
				require.Equal(t, i == j, rowOf{row: row}.has("me", other), "%d %d %v", i, j, row)
			}
			require.False(t, rowOf{row: row}.has("other", events[i]) && (i == 3 || i == 4), "the process is part of the name")
		}
	}
	require.True(t, rowOf{row: &tappb.Row{Path: "(other)"}}.has("me", events[5]))
	a := &tappb.Row{Source: "?", Destination: "10.0.0.2:80", Direction: 2, Method: "GET", Path: "/"}
	require.True(t, rowOf{a, true}.has("me", events[0]))
	require.False(t, rowOf{a, false}.has("me", events[0]))
}

// The row of a pattern has the requests that http.ServeMux routes by it.
func TestRowOfPattern(t *testing.T) {
	for _, pattern := range []string{"/users/{id}", "/users/{id}/{$}", "/users/{rest...}", "/users/{id}/orders", "/{$}", "web/users/{id}", "/users/x", "/users/"} {
		mux := http.NewServeMux()
		mux.Handle(pattern, http.NotFoundHandler())
		mux.Handle("POST "+pattern, http.NotFoundHandler())
		for _, path := range []string{"/", "/users", "/users/", "/users/1", "/users/x", "/users/1/", "/users/1/orders", "/users/1/orders/2"} {
			for _, method := range []string{"GET", "POST"} {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://web"+path, http.NoBody)
				require.NoError(t, err)
				h, found := mux.Handler(req)
				answer := httptest.NewRecorder()
				if h.ServeHTTP(answer, req); answer.Code != http.StatusNotFound {
					found = "" // a redirect to a path with a slash
				}
				want := method == "GET" && found == pattern || method == "POST" && found == "POST "+pattern
				e := tap.Event{RequestInit: &tap.RequestInit{Method: method, Path: path}}
				row := &tappb.Row{Method: method, Path: pattern}
				if !strings.HasSuffix(pattern, "/") { // that of a subtree is not the path of a row
					require.Equal(t, want, rowOf{row: row}.has("", e), "%s %s %s", method, pattern, path)
				}
				require.Equal(t, want && method == "POST", rowOf{row: &tappb.Row{Route: "POST " + pattern}}.has("", e), "%s %s %s", method, pattern, path)
			}
		}
	}
}

// The row (other) does not name its requests.
func TestRowOfTitle(t *testing.T) {
	for _, tt := range []struct {
		row  *tappb.Row
		want string
	}{
		{&tappb.Row{Source: "10.0.0.1", Destination: "web-0", Method: "GET", Path: "/a"}, "GET /a  10.0.0.1 → web-0"},
		{&tappb.Row{Destination: "web-0", Route: "vote"}, "route vote  → web-0"},
		{&tappb.Row{Path: "(other)"}, "all requests, those of (other) among them"},
		{&tappb.Row{Route: "(other)"}, "all requests, those of (other) among them"},
	} {
		require.Equal(t, tt.want, rowOf{row: tt.row}.title())
	}
}

// The match of a row selects all its requests.
func TestRowOfMatch(t *testing.T) {
	long := "/" + strings.Repeat("x", 255)
	for _, tt := range []struct {
		row       *tappb.Row
		anySource bool
		want      []*pb.ObserveRequest_Match
	}{
		{&tappb.Row{Source: "10.0.0.1", Destination: "[fe80::1]:80", Method: "GET", Path: "/a", Route: "of the first"}, false, []*pb.ObserveRequest_Match{
			match.Destination(netip.MustParsePrefix("fe80::1/128")), match.DestinationPorts(80, 80), match.Source(netip.MustParsePrefix("10.0.0.1/32")),
			match.Method("GET"), match.Path("/a"),
		}},
		{&tappb.Row{Source: "10.0.0.1", Method: "GET", Path: "/a"}, true, []*pb.ObserveRequest_Match{match.Method("GET"), match.Path("/a")}},
		{&tappb.Row{Source: "bot", Destination: "web-0", Route: "vote"}, false, []*pb.ObserveRequest_Match{match.RouteLabel("route", "vote")}},
		{&tappb.Row{Destination: "web-0", Route: "[DEFAULT]"}, false, nil},
		{&tappb.Row{Path: "(other)"}, false, nil},
		{&tappb.Row{Method: "GET", Path: "/users/{id}"}, false, []*pb.ObserveRequest_Match{match.Method("GET"), match.PathPrefix("/users/")}},
		{&tappb.Row{Method: "GET", Path: "web/users"}, false, []*pb.ObserveRequest_Match{match.Method("GET")}},
		{&tappb.Row{Route: "GET /users/{id}"}, false, nil},
		{&tappb.Row{Method: "GET", Path: long}, false, []*pb.ObserveRequest_Match{match.Method("GET"), match.PathPrefix(long)}},
	} {
		base := match.Scheme("http")
		got := rowOf{tt.row, tt.anySource}.match(base)
		require.True(t, proto.Equal(match.All(append([]*pb.ObserveRequest_Match{base}, tt.want...)...), got), "%v: %v", tt.row, got)
	}
	require.True(t, proto.Equal(match.All(), rowOf{row: &tappb.Row{}}.match(nil)))
}
