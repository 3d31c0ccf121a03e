package profiles_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func TestExplain(t *testing.T) {
	var bs backends
	get := profiles.Method("GET")
	r := routerOf(t, &profiles.Profile{
		Routes: []profiles.Route{
			{Name: "put", Match: profiles.All{profiles.Path("/a.*"), profiles.Method("PUT")}},
			{Match: profiles.Any{profiles.Path("/x"), profiles.All{get, profiles.PathPrefix("/y")}}},
			{Name: "not", Match: profiles.Not{Match: get}},
			{Name: "bad", Match: profiles.Path("(")},
			{Name: "tenant", Match: profiles.Header{Name: "x-tenant", Value: profiles.Prefix("b")}},
			{Name: "call", Match: profiles.GRPC{Method: "Get"}},
			{Name: "canary", Match: profiles.Query{Name: "canary", Value: profiles.Present{}}},
			{Name: "host", Match: profiles.Host{Value: profiles.Regex("a|b")}},
			{Name: "a", Match: profiles.Path("/a/[^/]*")},
			{Name: "behind", Match: profiles.All{}},
		},
		Targets: []profiles.Target{{Authority: "a:80", Weight: 1}, {Authority: "b:80", Weight: 1}},
	}, &bs)
	bs.get(t, "a:80").unready.Store(true)

	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, request{method: "GET", path: "/a/b"})
	require.NoError(t, err)
	assert.Equal(t, `profiles   target=web:80 route=a
  route      route=put failed=method "PUT"
  route      route=any (path "/x", all (method "GET", path prefix "/y/")) failed=any (path "/x", path prefix "/y/")
  route      route=not failed=not (method "GET")
  route      route=tenant failed=header "X-Tenant" begins with "b"
  route      route=call failed=gRPC service "*", method "Get"
  route      route=canary failed=query parameter "canary" is present
  route      route=host failed=host matches "a|b"
split      target=web:80 drawn=b:80
  target     authority=a:80 weight=1 ready=false
  target     authority=b:80 weight=1 ready=true
`, why.String())
}

func TestExplainDefaultRoute(t *testing.T) {
	p := &profiles.Profile{}
	for i := range 20 {
		p.Routes = append(p.Routes, profiles.Route{Name: fmt.Sprint(i), Match: profiles.Any{}})
	}
	var bs backends
	r := routerOf(t, p, &bs)
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, request{method: "GET", path: "/a/b"})
	require.NoError(t, err)
	require.Len(t, why.Choices(), 1, "one target: nothing was drawn")
	choice := why.Choices()[0]
	assert.Equal(t, "default", choice.State.Get("route"))
	assert.Equal(t, 4, choice.State.Get("not_shown"))
	assert.Len(t, choice.Children, 16)
}
