package view

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

func TestFilter(t *testing.T) {
	f, err := readFilter("")
	require.NoError(t, err)
	want := &tappb.WatchRequest{Match: match.All(), Fields: true, Explain: true, MaxRps: maxInspected}
	require.True(t, proto.Equal(want, f.WatchRequest), "%v", f.WatchRequest)

	for query, want := range map[string]*tappb.WatchRequest{
		"method=post":    {Match: match.All(match.Method("POST"))},
		"path=%3D/a":     {Match: match.All(match.Path("/a"))},
		"route=books":    {Match: match.All(match.RouteLabel("route", "books"))},
		"route=/a/{id}":  {Match: match.All(match.Any(match.RouteLabel("route", "/a/{id}"), match.PathPrefix("/a/")))},
		"path=/a":        {Match: match.All(match.PathPrefix("/a"))},
		"authority=a:80": {Match: match.All(match.Authority("a:80"))},
		"status=5xx":     {Match: match.All(), Response: &tappb.ResponseMatch{MinStatus: 500, MaxStatus: 599}},
		"failures=1":     {Match: match.All(), Response: &tappb.ResponseMatch{Failures: true}},
		"slower=250ms":   {Match: match.All(), Response: &tappb.ResponseMatch{SlowerThan: durationpb.New(250 * time.Millisecond)}},
		"path=/a&slower=1s": {
			Match: match.All(match.PathPrefix("/a")), Response: &tappb.ResponseMatch{SlowerThan: durationpb.New(time.Second)},
		},
	} {
		f, err := readFilter(query)
		require.NoError(t, err, query)
		want.Fields, want.Explain, want.MaxRps = true, true, maxInspected
		require.True(t, proto.Equal(want, f.WatchRequest), "%s: %v", query, f.WatchRequest)
		require.False(t, f.unrouted)
	}
	for query, problem := range map[string]string{
		"status=6xx":       `status: "6xx" must be 1xx, 2xx, 3xx, 4xx or 5xx`,
		"status=200":       "must be 1xx",
		"status=":          "must be 1xx",
		"failures=yes":     `failures: "yes" must be 1`,
		"slower=5":         `slower: "5" must be a positive duration such as 250ms`,
		"slower=-1s":       "must be a positive duration",
		"body=1":           "body: unknown filter",
		"path=/a&path=/b":  "path is set 2 times",
		"path=/a%":         "invalid URL escape",
		"path=/a;method=x": "semicolon",
		"status=2xx&x=%00": "x: unknown filter",
	} {
		_, err = readFilter(query)
		require.ErrorContains(t, err, problem, query)
	}
}

// Tap has no condition for requests without a route.
func TestFilterWithoutRoute(t *testing.T) {
	f, err := readFilter("route=%5BDEFAULT%5D")
	require.NoError(t, err)
	require.True(t, proto.Equal(match.All(), f.Match), "%v", f.Match)
	e := begins(1)
	require.False(t, f.omits(e))
	e.RouteLabels = map[string]string{"route": "books"}
	require.True(t, f.omits(e))
	all, err := readFilter("")
	require.NoError(t, err)
	require.False(t, all.omits(e))
}

func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"", "method=GET&path=/a", "status=5xx&failures=1&slower=1h", "status=0xx", "a=b", "path=%ff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		req, err := readFilter(query)
		if err != nil {
			return
		}
		if m := req.GetResponse(); m != nil {
			require.Equal(t, m.GetMinStatus() > 0, m.GetMaxStatus() == m.GetMinStatus()+99 && m.GetMinStatus()%100 == 0)
			require.True(t, m.GetSlowerThan() == nil || m.GetSlowerThan().AsDuration() > 0)
			require.True(t, m.GetFailures() || m.GetMinStatus() > 0 || m.GetSlowerThan() != nil)
		}
		require.True(t, req.GetFields() && req.GetExplain())
		require.Zero(t, req.GetBodyBytes(), "a page never asks for bodies")
	})
}
