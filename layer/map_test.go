package layer_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errMap = errors.New("no good")

// mapRefusing rejects each request with err.
func mapRefusing(err error) layer.Func[string, string] {
	return func(context.Context, string) (string, error) { return "", err }
}

func TestMapLayersRejections(t *testing.T) {
	seen := 0
	for name, l := range map[string]layer.Layer[string, string]{
		"map_response": layer.MapResponse[string](func(rsp string) string { seen++; return rsp }),
	} {
		for _, rejection := range []error{layer.ErrNotReady, layer.ErrClosed, layer.ErrFailFast} {
			_, err := l(mapRefusing(rejection)).Call(t.Context(), "")
			require.Equal(t, rejection, err, name)
		}
	}
	require.Zero(t, seen)
}

func TestMapRequestKeepsOriginal(t *testing.T) {
	type request struct{ path string }
	var got *request
	svc := layer.MapRequest[*request, string](func(req *request) *request {
		other := *req
		other.path = strings.TrimPrefix(req.path, "/api")
		return &other
	})(layer.Func[*request, string](func(_ context.Context, req *request) (string, error) { got = req; return "", nil }))
	mine := &request{"/api/users"}
	_, err := svc.Call(t.Context(), mine)
	require.NoError(t, err)
	require.Equal(t, "/users", got.path)
	require.Equal(t, "/api/users", mine.path)
	require.Equal(t, "map_request\nlayer.Func\n", layer.Describe(svc).String())
}

func TestMapResponse(t *testing.T) {
	svc := layer.MapResponse[string](strings.ToUpper)(layer.Func[string, string](repeat))
	got, err := svc.Call(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "A", got)
	_, err = layer.MapResponse[string](strings.ToUpper)(mapRefusing(errMap)).Call(t.Context(), "a")
	require.Equal(t, errMap, err)
	require.Equal(t, "map_response\nlayer.Func\n", layer.Describe(svc).String())
}

func TestMapLayersAllocations(t *testing.T) {
	id := func(n int) int { return n }
	leaf := layer.Func[int, int](echo)
	for name, svc := range map[string]layer.Service[int, int]{
		"stack": layer.NewStack[int, int]().With("req", layer.MapRequest[int, int](id)).With("rsp", layer.MapResponse[int](id)).
			With("filter", layer.Filter[int, int](func(int) error { return nil })).Service(leaf),
	} {
		ctx := context.Background()
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(ctx, 1) }), name)
	}
}
