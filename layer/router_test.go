package layer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestRouterNoRoute(t *testing.T) {
	unknown := errors.New(`no host in "x"`)
	svc := layer.Router(func(req string) (string, error) {
		if req == "x" {
			return "", unknown
		}
		return req, nil
	}, func(string) layer.Service[string, string] { return nil })

	_, err := svc.Call(t.Context(), "x")
	require.ErrorIs(t, err, layer.ErrNoRoute)
	require.ErrorIs(t, err, unknown)
	require.NotErrorIs(t, err, layer.ErrNotReady, "a queue would wait for it")

	_, err = svc.Call(t.Context(), "api")
	require.ErrorIs(t, err, layer.ErrNoRoute)
	require.EqualError(t, err, "router api: no route: no service for this key")
	require.NoError(t, layer.Poll(svc))
	require.Equal(t, "router\n", layer.Describe(svc).String())
}

// If a route rejects permanently, the router is not closed. The next request is routed
// separately.
func TestRouterErrorsOfRoute(t *testing.T) {
	full := &layer.Error{Layer: "limit", Kind: layer.ErrNotReady}
	svc := layer.Router(func(req string) (string, error) { return req, nil },
		func(key string) layer.Service[string, string] {
			return layer.Func[string, string](func(context.Context, string) (string, error) {
				if key == "full" {
					return "", full
				}
				return key, nil
			})
		})
	_, err := svc.Call(t.Context(), "full")
	require.Equal(t, full, err)
	got, err := svc.Call(t.Context(), "web")
	require.NoError(t, err)
	require.Equal(t, "web", got)
}
