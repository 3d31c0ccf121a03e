package profiles_test

import (
	"context"
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

// one is a profile with one route, for everything.
func one(r profiles.Route) *profiles.Profile {
	r.Match = profiles.All{}
	return &profiles.Profile{Routes: []profiles.Route{r}}
}

func TestRedirectResponse(t *testing.T) {
	c := newCounters()
	p := one(profiles.Route{Redirect: &profiles.Redirect{Scheme: "https", Host: "b", Status: 308}, Retry: &profiles.Retry{}})
	p.RetryBudget = budget()
	r, bs := servingWith(t, profiles.Config{Metrics: c.instruments}, p, nil, answering())
	rsp := send(t, r, "GET", "/a")
	assert.Equal(t, 308, rsp.status)
	assert.Equal(t, fields{"Location": "https://b/a", "message": "redirected to https://b/a"}, rsp.header)
	assert.EqualValues(t, 1, of(c.requests.Responses, "success"))
	rsp, err := r.Call(t.Context(), request{method: "POST", path: "/a", contentType: "application/grpc"})
	require.NoError(t, err)
	assert.Equal(t, "5", rsp.header["grpc-status"], "as in linkerd")
	assert.EqualValues(t, 2, count(c.requests.Requests))
	assert.EqualValues(t, 2, of(c.requests.Responses, "success"))
	assert.Empty(t, bs.calls())
	assert.Zero(t, count(c.tries.Requests))
}

// A place that is where the request came to would only send it round.
func TestRedirectSameLocation(t *testing.T) {
	r, bs := serving(t, one(profiles.Route{Redirect: &profiles.Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}}), nil, answering())
	assert.Equal(t, 302, send(t, r, "GET", "/v1/a").status)
	assert.Equal(t, 200, send(t, r, "GET", "/v2/a").status)
	assert.EqualValues(t, 1, bs.calls()[target])
}

// A redirected request reaches no layer below the redirect.
func TestRedirectOrder(t *testing.T) {
	route := profiles.Route{
		Redirect: &profiles.Redirect{Host: "b"}, Faults: []profiles.Fault{abort(1, 503)}, Rate: profiles.Rate{PerSecond: 1e-9},
	}
	r, bs := serving(t, one(route), nil, answering())
	for _, b := range bs.made {
		b.set(&b.unready, true)
	}
	assert.Equal(t, 302, send(t, r, "GET", "/").status)
	_, err := r.Call(t.Context(), get)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestRedirectExplainAndDescribe(t *testing.T) {
	r, _ := serving(t, one(profiles.Route{Redirect: &profiles.Redirect{Host: "::1", Port: 81}}), nil, answering())
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, get)
	require.NoError(t, err)
	assert.Regexp(t, `redirect +status=302 message=redirected to http://\[::1\]:81/`, why.String())
	assert.Regexp(t, `redirect +status=302 from=http://host/path to=http://\[::1\]:81/path`, layer.Describe[request, *reply](r).String())
	r, _ = serving(t, one(profiles.Route{Redirect: &profiles.Redirect{OldPrefix: "/v1/", NewPrefix: "/v2"}}), nil, answering())
	assert.Regexp(t, `from=http://host/v1/path to=http://host/v2/path`, layer.Describe[request, *reply](r).String())
}

func TestInvalidHeaderChanges(t *testing.T) {
	pairs := func(name string) []layer.HeaderField {
		return []layer.HeaderField{{Name: name, Value: "x"}, {Name: "X-Fine"}}
	}
	route := profiles.Route{
		Name:           "r",
		RequestHeader:  layer.HeaderMutation{Set: pairs("Connection"), Add: pairs("a b")},
		ResponseHeader: layer.HeaderMutation{Remove: []string{"Trailer"}},
		Redirect:       &profiles.Redirect{Status: 200},
	}
	err := one(route).Validate()
	for _, want := range []string{
		`Routes[0].RequestHeader: route "r": set "Connection": belongs to the connection`,
		`Routes[0].RequestHeader: route "r": add "a b": name must consist`,
		`Routes[0].ResponseHeader: route "r": remove "Trailer"`,
		`Routes[0].Redirect: route "r": status 200`,
	} {
		require.ErrorContains(t, err, want)
	}
	l := newLog()
	r, _ := servingWith(t, profiles.Config{Log: l.logger()}, one(route), nil, answering())
	assert.Len(t, l.attrs("left out of a profile", "err"), 4)
	assert.NotContains(t, layer.Describe[request, *reply](r).String(), "redirect")
}

// kitEdit changes the messages of layertest.
type kitEdit struct{ kitStandard }

func (kitEdit) EditRequest(req kitRequest, c layer.HeaderMutation) kitRequest {
	out := *req
	out.Header = map[string]string{c.Set[0].Name: c.Set[0].Value}
	maps.Copy(out.Header, req.Header)
	return &out
}

func (kitEdit) EditResponse(rsp kitResponse, c layer.HeaderMutation) kitResponse {
	rsp.Header = map[string]string{c.Set[0].Name: c.Set[0].Value}
	return rsp
}

// A route with layers that may answer conforms while they do not.
func TestChangesConform(t *testing.T) {
	set := layer.HeaderMutation{Set: []layer.HeaderField{{Name: "x-kit", Value: "1"}}}
	for i, route := range []profiles.Route{
		{RequestHeader: set},
		{ResponseHeader: set},
		{Redirect: &profiles.Redirect{Path: "/"}}, // where they are
		{Faults: []profiles.Fault{abort(0, 503), {Delay: 1, TTL: 1}}},
		{RequestHeader: set, ResponseHeader: set, Redirect: &profiles.Redirect{Path: "/"}, Faults: []profiles.Fault{abort(0, 503)}},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) { layertest.Run(t, conforming(route)) })
	}
}

// hosted is kitAccess with an authority.
type hosted struct{ kitAccess }

func (hosted) Authority(kitRequest) string { return "web" }

func conforming(route profiles.Route) layertest.Layer {
	return layertest.Layer{OutlivesInner: true, New: func(ctx context.Context, next kitService) kitService {
		src := newScript()
		r := profiles.New(ctx, profiles.Config{Target: target, Source: src}, hosted{}, func(string) kitService { return next },
			profiles.WithRouteLayers(kitEdit{}))
		src.send(one(route), nil)
		return r
	}}
}

// The invalid filters of a backend are reported like those of its route.
func TestInvalidFiltersOfBackend(t *testing.T) {
	b := weighted("a:80", 1)
	b.Redirect = &profiles.Redirect{Status: 200}
	p := one(profiles.Route{Name: "r", Backends: []profiles.Backend{weighted("a:80", 1), b}})
	const want = `Routes[0].Backends[1].Redirect: route "r": status 200 is not 301, 302, 303, 307 or 308`
	require.EqualError(t, p.Validate(), want)
	l := newLog()
	r, _ := servingWith(t, profiles.Config{Log: l.logger()}, p, nil, answering())
	require.Equal(t, []string{want}, l.errors("left out of a profile"))
	require.Equal(t, "a:80", send(t, r, "GET", "/").from)
}
