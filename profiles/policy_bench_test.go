package profiles_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// BenchmarkPolicy is the cost of a request through a Router: with the default profile, with a policy
// of 1000 routes, and with the timeouts, retries and overrides of its route.
func BenchmarkPolicy(b *testing.B) {
	for _, bb := range policies() {
		b.Run(bb.name, func(b *testing.B) {
			r, req := routed(b, bb.profile, bb.header)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Call(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A policy costs at most two allocations for each request, unless the request has override
// fields. Such a request is copied without these fields.
func TestPolicyAllocations(t *testing.T) {
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector allocates")
	}
	for _, tt := range policies() {
		r, req := routed(t, tt.profile, tt.header)
		ctx := t.Context()
		allocs := testing.AllocsPerRun(100, func() { _, _ = r.Call(ctx, req) })
		assert.LessOrEqual(t, allocs, tt.allocs, tt.name)
	}
}

// policyCase is a profile, the additional header fields of requests, and the maximum number of
// allocations for each request.
type policyCase struct {
	name    string
	profile *profiles.Profile
	header  map[string]string
	allocs  float64
}

func policies() []policyCase {
	policy := func(r profiles.Route) *profiles.Profile {
		profile := &profiles.Profile{Precedence: profiles.MostSpecific, RoutesOnly: true}
		r.Backends = []profiles.Backend{{
			Target: profiles.Target{Authority: "web-v1:80", Weight: 1}, Labels: map[string]string{"backend_name": "web-v1"},
		}}
		for i := range 1000 {
			r.Name = fmt.Sprint(i)
			r.Match = profiles.All{
				profiles.Host{Value: profiles.Exact("web.example")}, profiles.PathPrefix(fmt.Sprintf("/api/%d", i)), profiles.Method("GET"),
			}
			profile.Routes = append(profile.Routes, r)
		}
		return profile
	}
	retry := &profiles.Retry{
		Max: 2, NonIdempotent: true, WithoutBudget: true, MaxBodyBytes: 1000, Statuses: []profiles.Status{{Min: 500, Max: 599}},
	}
	return []policyCase{
		{"none", &profiles.Profile{}, nil, 0},
		{"routes", policy(profiles.Route{}), nil, 1},
		{"overrides", policy(profiles.Route{Overrides: true}), nil, 1},
		{"overridden", policy(profiles.Route{Overrides: true}), map[string]string{"L5d-Timeout": "10s", "L5d-Retry-Http": "5xx"}, 6},
		{"timeout", policy(profiles.Route{RequestTimeout: time.Minute}), nil, 2},
		{"retry", policy(profiles.Route{Retry: retry}), nil, 2},
		{"timeout and retry", policy(profiles.Route{RequestTimeout: time.Minute, Retry: retry}), nil, 2},
	}
}

// routed returns a Router that has received the profile, and a request for one of the 1000 routes.
func routed(tb testing.TB, profile *profiles.Profile, header map[string]string) (httplayer.Service, *http.Request) {
	tb.Helper()
	rsp := &http.Response{StatusCode: 200, Body: http.NoBody}
	mk := func(string) httplayer.Service {
		return handlerHTTP(func(context.Context, *http.Request) (*http.Response, error) { return rsp, nil })
	}
	var source profiles.Static
	source.Set(target, profile)
	r := profiles.New(tb.Context(), profiles.Config{Target: target, Source: &source, InitialWait: time.Minute}, httplayer.HTTP{}, mk,
		profiles.WithRouteLayers(httplayer.HTTP{}))
	req, _ := http.NewRequest(http.MethodGet, "http://web.example/api/777/x", nil)
	req.Header = http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"gzip"}, "L5d-Dst-Canonical": {"web.example:80"}, "User-Agent": {"test"}}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	_, err := r.Call(tb.Context(), req) // waits for the profile
	require.NoError(tb, err)
	return r, req
}

// handlerHTTP is a service that is always ready.
type handlerHTTP func(context.Context, *http.Request) (*http.Response, error)

func (handlerHTTP) Ready(context.Context) error { return nil }
func (h handlerHTTP) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return h(ctx, req)
}
