package profiles_test

import (
	"context"
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
			{Name: "canary", Match: profiles.Query{Name: "canary", Value: profiles.AnyValue{}}},
			{Name: "host", Match: profiles.Host{Value: profiles.Regex("a|b")}},
			{Name: "a", Match: profiles.Path("/a/[^/]*")},
			{Name: "behind", Match: profiles.All{}},
		},
		Targets:      []profiles.Target{{Authority: "a:80", Weight: 1}, {Authority: "b:80", Weight: 1}},
		Distribution: profiles.RandomAvailable,
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

// An explanation withholds credentials.
func TestExplainWithholdsSecrets(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Name: "admin", Match: profiles.Header{Name: "Authorization", Value: profiles.Exact("Bearer s3cret")}},
		{Match: profiles.Header{Name: "cookie", Value: profiles.Prefix("s3cret")}},
		{Name: "known", Match: profiles.Header{Name: "cookie", Value: profiles.AnyValue{}}},
	}}, &bs)
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, request{method: "GET", path: "/"})
	require.NoError(t, err)
	require.NotContains(t, why.String(), "s3cret")
	require.Contains(t, why.String(), `route=admin failed=header "Authorization" [redacted]`)
	require.Contains(t, why.String(), `route=header "Cookie" [redacted] failed=header "Cookie" [redacted]`)
	require.Contains(t, why.String(), `failed=header "Cookie" is present`)
}

// An explanation has the reason of each attempt and the balance of the budget.
func TestExplainAttempts(t *testing.T) {
	left := 2
	r, _ := serving(t, retryable(), func(context.Context, request) (*reply, error) {
		if left--; left == 1 {
			return &reply{status: 200, header: fields{"grpc-status": "14"}}, nil
		}
		if left == 0 {
			return nil, errPeer
		}
		return &reply{status: 200}, nil
	})
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, request{method: "POST", path: "/", contentType: "application/grpc"})
	require.NoError(t, err)
	assert.Equal(t, `profiles   target=web:80 route=r
retry      target=web:80 attempt=2 because=failure: status 200, gRPC status 14 budget=9
retry      target=web:80 attempt=3 because=peer budget=8
retry      target=web:80 attempts=3 budget=8
`, why.String())
}

func TestExplainWithoutRetry(t *testing.T) {
	p := retryable(func(r *profiles.Route) { r.Retry.Max = 1 })
	r, _ := serving(t, p, status(503))
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, get)
	require.NoError(t, err)
	assert.Equal(t, `profiles   target=web:80 route=r
retry      target=web:80 attempt=2 because=failure: status 503 budget=9
retry      target=web:80 attempts=2 failed=failure: status 503 skipped=attempts budget=9
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
