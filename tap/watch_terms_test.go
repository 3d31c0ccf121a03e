package tap

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

func exactly(name, value string) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Exact{Exact: value}}
}

func beginning(name, value string) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Prefix{Prefix: value}}
}

func having(name string, is bool) *tappb.HeaderMatch {
	return &tappb.HeaderMatch{Name: name, Value: &tappb.HeaderMatch_Present{Present: is}}
}

// Rejections are the same in the process and over gRPC.
func TestWatchRejects(t *testing.T) {
	p := listen(t, NewServer(NewRegistry(WithCapacity(1, 0))), nil)
	const wrong, forbidden = codes.InvalidArgument, codes.PermissionDenied
	tests := map[string]struct {
		req  *tappb.WatchRequest
		code codes.Code
		want string
	}{
		"match":              {&tappb.WatchRequest{Match: match.Not(nil)}, wrong, "tap: match.not: missing"},
		"header name":        {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having("a", true), having(":path", true)}}, wrong, `tap: headers[1].name: missing or not a header name: ":path"`},
		"header without one": {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{nil}}, wrong, `tap: headers[0].name: missing or not a header name: ""`},
		"header value":       {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{{Name: "a"}}}, wrong, "tap: headers[0]: neither exact nor prefix nor present"},
		"too many headers":   {&tappb.WatchRequest{Headers: make([]*tappb.HeaderMatch, 1001)}, wrong, "tap: match: more than 1000 conditions"},
		"long match":         {&tappb.WatchRequest{Match: match.PathPrefix(strings.Repeat("/", 65<<10))}, wrong, "tap: match: more than 64 KiB"},
		"long header":        {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having(strings.Repeat("a", 65<<10), true)}}, wrong, "tap: match: more than 64 KiB"},
		"many statuses":      {&tappb.WatchRequest{Response: &tappb.ResponseMatch{GrpcStatus: make([]uint32, 101)}}, wrong, "tap: response.grpc_status: more than 100"},
		"secret exact":       {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{exactly("AUTHORIZATION", "x")}}, forbidden, "tap: headers[0]: the value of authorization is withheld: match only its presence"},
		"secret prefix":      {&tappb.WatchRequest{Headers: []*tappb.HeaderMatch{beginning("cookie", "")}}, forbidden, "tap: headers[0]: the value of cookie is withheld: match only its presence"},
		"sample above":       {&tappb.WatchRequest{Sample: 1.5}, wrong, "tap: sample: 1.5 must be from 0 to 1"},
		"sample below":       {&tappb.WatchRequest{Sample: -.1}, wrong, "tap: sample: -0.1 must be from 0 to 1"},
		"sample nan":         {&tappb.WatchRequest{Sample: math.NaN()}, wrong, "tap: sample: NaN must be from 0 to 1"},
		"duration 0":         {&tappb.WatchRequest{Duration: durationpb.New(0)}, wrong, "tap: duration: must be positive"},
		"duration negative":  {&tappb.WatchRequest{Duration: durationpb.New(-1)}, wrong, "tap: duration: must be positive"},
		"duration invalid":   {&tappb.WatchRequest{Duration: &durationpb.Duration{Seconds: 1, Nanos: -1}}, wrong, "tap: duration: must be positive"},
		"bodies":             {&tappb.WatchRequest{BodyBytes: 1}, forbidden, "tap: body_bytes: the process has no tap.WithBodies"},
		"status max only":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MaxStatus: 1}}, wrong, "tap: response: min_status and max_status must be set together"},
		"status min only":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 1}}, wrong, "tap: response: min_status and max_status must be set together"},
		"status reversed":    {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 2, MaxStatus: 1}}, wrong, "tap: response: min_status 2 is above max_status 1"},
		"status too large":   {&tappb.WatchRequest{Response: &tappb.ResponseMatch{MinStatus: 2, MaxStatus: 1000}}, wrong, "tap: response.max_status: 1000 is not a status"},
		"slower":             {&tappb.WatchRequest{Response: &tappb.ResponseMatch{SlowerThan: durationpb.New(-1)}}, wrong, "tap: response.slower_than: must not be negative"},
	}
	check := func(t *testing.T, req *tappb.WatchRequest, code codes.Code, want string) {
		t.Helper()
		n := 0
		for e, err := range p.reg.Watch(t.Context(), req) {
			n++
			require.Equal(t, Event{}, e)
			require.EqualError(t, err, want)
			require.Equal(t, code, status.Code(err))
		}
		require.Equal(t, 1, n)
		for _, err := range Watch(t.Context(), p.conn, req) {
			n++
			require.Equal(t, code, status.Code(err))
			require.Contains(t, err.Error(), want)
		}
		require.Equal(t, 2, n)
		require.Error(t, <-p.ended)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			check(t, tt.req, tt.code, tt.want)
			require.Nil(t, p.reg.active.Load())
		})
	}
	t.Run("too many", func(t *testing.T) {
		p.watch(t.Context(), t, &tappb.WatchRequest{})
		check(t, &tappb.WatchRequest{}, codes.ResourceExhausted, "tap: too many watchers: 1 of 1")
	})
}

func TestWatchRejectsClients(t *testing.T) {
	srv := NewServer(new(Registry), WithDescribe(nil))
	err := gotowerTap{server: srv}.Watch(nil, watchStream{ctx: t.Context()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = gotowerTap{server: srv}.Describe(t.Context(), nil)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Empty(t, srv.reg.Describe().Children)
}

func TestHeaderMatch(t *testing.T) {
	header := fields{{"X-Team", "blue"}, {"x-team", "red"}, {"Authorization", "Bearer s3cret"}, {"X-Empty", ""}}
	for name, tt := range map[string]struct {
		headers []*tappb.HeaderMatch
		want    bool
	}{
		"none":                    {nil, true},
		"exact":                   {[]*tappb.HeaderMatch{exactly("x-team", "blue")}, true},
		"exact, a later value":    {[]*tappb.HeaderMatch{exactly("X-TEAM", "red")}, true},
		"exact, case of a value":  {[]*tappb.HeaderMatch{exactly("x-team", "Blue")}, false},
		"exact, beginning":        {[]*tappb.HeaderMatch{exactly("x-team", "blu")}, false},
		"exact, empty":            {[]*tappb.HeaderMatch{exactly("x-empty", "")}, true},
		"exact, empty and absent": {[]*tappb.HeaderMatch{exactly("x-none", "")}, false},
		"prefix":                  {[]*tappb.HeaderMatch{beginning("x-team", "re")}, true},
		"prefix, other":           {[]*tappb.HeaderMatch{beginning("x-team", "g")}, false},
		"prefix, absent":          {[]*tappb.HeaderMatch{beginning("x-none", "")}, false},
		"present":                 {[]*tappb.HeaderMatch{having("x-empty", true)}, true},
		"present, not":            {[]*tappb.HeaderMatch{having("x-none", true)}, false},
		"absent":                  {[]*tappb.HeaderMatch{having("x-none", false)}, true},
		"absent, not":             {[]*tappb.HeaderMatch{having("x-team", false)}, false},
		"present, secret":         {[]*tappb.HeaderMatch{having("authorization", true)}, true},
		"all of them":             {[]*tappb.HeaderMatch{exactly("x-team", "blue"), having("x-empty", true)}, true},
		"one of them does not":    {[]*tappb.HeaderMatch{exactly("x-team", "blue"), having("x-none", true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := new(Registry).filter(nil, tt.headers)
			require.NoError(t, err)
			require.Equal(t, tt.want, c.holds(headerView(header)))
		})
	}
	t.Run("with a match", func(t *testing.T) {
		c, err := new(Registry).filter(match.Method("GET"), []*tappb.HeaderMatch{having("x-team", true)})
		require.NoError(t, err)
		require.True(t, c.holds(headerView(header)))
		c, err = new(Registry).filter(match.Method("PUT"), []*tappb.HeaderMatch{having("x-team", true)})
		require.NoError(t, err)
		require.False(t, c.holds(headerView(header)))
	})
	t.Run("revealed", func(t *testing.T) {
		c, err := NewRegistry(WithRevealed("Authorization")).filter(nil, []*tappb.HeaderMatch{beginning("authorization", "Bearer ")})
		require.NoError(t, err)
		require.True(t, c.holds(headerView(header)))
	})
	t.Run("redacted", func(t *testing.T) {
		_, err := NewRegistry(WithRedacted("X-Team")).filter(nil, []*tappb.HeaderMatch{exactly("x-team", "blue")})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	})
}

func headerView(header fields) *view {
	s := sample()
	s.header = header
	return s.view()
}
