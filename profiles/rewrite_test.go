package profiles_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// Each attempt has the rewritten host and path. The condition reads the original path, and the request
// of the caller is unchanged.
func TestRewrite(t *testing.T) {
	for what, tt := range map[string]struct {
		rewrite profiles.Rewrite
		url     string
		want    string
	}{
		"host":              {profiles.Rewrite{Host: "internal:81"}, "/a/b?fails=1", "internal:81/a/b?fails=1"},
		"path":              {profiles.Rewrite{Path: "/new"}, "/a/b?fails=1", "web/new?fails=1"},
		"path and query":    {profiles.Rewrite{Path: "/new?fails=1&x=%20"}, "/a/b", "web/new?fails=1&x=%20"},
		"prefix":            {profiles.Rewrite{OldPrefix: "/a", NewPrefix: "/c/d"}, "/a/b?fails=1", "web/c/d/b?fails=1"},
		"whole prefix":      {profiles.Rewrite{OldPrefix: "/a", NewPrefix: "/"}, "/a?fails=1", "web/?fails=1"},
		"escaped":           {profiles.Rewrite{OldPrefix: "/a", NewPrefix: "/c"}, "/a/x%2Fy%20z?fails=1", "web/c/x%2Fy%20z?fails=1"},
		"host and a prefix": {profiles.Rewrite{Host: "b", OldPrefix: "/a", NewPrefix: "/c"}, "/a/b?fails=1", "b/c/b?fails=1"},
	} {
		r, came := newWebRouter(t, retryable(func(r *profiles.Route) {
			r.Match, r.Rewrite = profiles.PathPrefix("/a"), &tt.rewrite
			r.RequestHeader = layer.HeaderMutation{Set: pairs("X-Added", "1")}
		}))
		req := streamed(t, tt.url, strings.NewReader("hello"), 5)
		rsp, err := r.Call(t.Context(), req)
		require.NoError(t, err, what)
		require.NoError(t, rsp.Body.Close())
		require.Len(t, came(), 2, what)
		for _, try := range came() {
			assert.Equal(t, tt.want, try.url, what)
			assert.Equal(t, "hello", try.body)
			assert.Equal(t, []string{"1"}, try.header["X-Added"])
		}
		assert.Equal(t, "web"+tt.url, req.Host+req.URL.RequestURI(), "of the caller")
	}
}

// A response of the route needs no target. Other layers of the route apply to it.
func TestRespond(t *testing.T) {
	r, came := newWebRouter(t, one(profiles.Route{
		Respond:        &layer.DirectResponse{Status: 503, GRPC: 8, Message: "closed for today", Header: pairs("Retry-After", "3600")},
		ResponseHeader: layer.HeaderMutation{Set: pairs("X-Added", "1")},
	}))
	rsp, err := r.Call(t.Context(), streamed(t, "/", strings.NewReader("hello"), 5))
	require.NoError(t, err)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	assert.Equal(t, "closed for today", string(text))
	assert.Equal(t, 503, rsp.StatusCode)
	assert.Equal(t, "3600", rsp.Header.Get("Retry-After"))
	assert.Equal(t, "1", rsp.Header.Get("X-Added"))

	call := streamed(t, "/web.Web/Get", http.NoBody, 0)
	call.Header.Set("Content-Type", "application/grpc")
	rsp, err = r.Call(t.Context(), call)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, 200, rsp.StatusCode)
	assert.Equal(t, "8", rsp.Header.Get("Grpc-Status"))
	assert.Empty(t, came())
	assert.Contains(t, layer.Describe[*http.Request, *http.Response](r).String(), "respond    status=503")
}

func TestRewriteAndRespondValidate(t *testing.T) {
	for want, route := range map[string]profiles.Route{
		"":                                     {Rewrite: &profiles.Rewrite{Host: "[::1]:80"}, Respond: &layer.DirectResponse{Status: 200, GRPC: 16}},
		"Rewrite: no host or path":             {Rewrite: &profiles.Rewrite{}},
		`Rewrite: host "a b" is not a host`:    {Rewrite: &profiles.Rewrite{Host: "a b"}},
		`Rewrite: path "b" does not begin`:     {Rewrite: &profiles.Rewrite{Path: "b"}},
		"Rewrite: new prefix":                  {Rewrite: &profiles.Rewrite{NewPrefix: "/b"}},
		"Rewrite: a path and a prefix exclude": {Rewrite: &profiles.Rewrite{Path: "/b", OldPrefix: "/a"}},
		"Respond: status 101 is not from 200":  {Respond: &layer.DirectResponse{Status: 101}},
		"Respond: gRPC status 17 is not":       {Respond: &layer.DirectResponse{Status: 200, GRPC: 17}},
		"Respond: header: set":                 {Respond: &layer.DirectResponse{Status: 200, Header: pairs("a b", "")}},
	} {
		route.Match = profiles.All{}
		err := (&profiles.Profile{Routes: []profiles.Route{route}}).Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "Routes[0]."+want)
		r, came := newWebRouter(t, &profiles.Profile{Routes: []profiles.Route{route}})
		rsp, err := r.Call(t.Context(), streamed(t, "/", http.NoBody, 0))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, "web/", came()[0].url, "without the invalid part")
	}
}
