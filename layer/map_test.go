package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

func TestMapChangesTypes(t *testing.T) {
	double := layer.Func[int, int](func(_ context.Context, n int) (int, error) { return 2 * n, nil })
	svc := layer.Map(double, strconv.Atoi, func(n int) (string, error) {
		if n > 100 {
			return "", errMap
		}
		return fmt.Sprint(n), nil
	})
	got, err := svc.Call(t.Context(), "21")
	require.NoError(t, err)
	require.Equal(t, "42", got)

	_, err = svc.Call(t.Context(), "x")
	require.ErrorIs(t, err, strconv.ErrSyntax)
	require.EqualError(t, err, `map: converting the request: strconv.Atoi: parsing "x": invalid syntax`)
	_, err = svc.Call(t.Context(), "51")
	require.ErrorIs(t, err, errMap)
	require.NoError(t, layer.Poll(svc))
	require.Equal(t, "map\nlayer.Func\n", layer.Describe(svc).String())
}

func TestMapPassesRefusals(t *testing.T) {
	none := layer.Limit[int, int](0)(layer.Func[int, int](echo))
	asked := 0
	svc := layer.Map(none, strconv.Atoi, func(int) (string, error) { asked++; return "", nil })
	_, err := svc.Call(t.Context(), "1")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	require.Zero(t, asked)
}

// A request that was served must not look untouched, or it is sent twice.
func TestMapHidesThatWhatFollowedWasRefused(t *testing.T) {
	rejected := &layer.Error{Layer: "second", Kind: layer.ErrClosed, Err: errMap}
	for name, svc := range map[string]layer.Service[string, string]{
		"map": layer.Map(layer.Func[string, string](repeat), func(s string) (string, error) { return s, nil },
			func(string) (string, error) { return "", rejected }),
		"map_err": layer.MapErr[string, string](func(error) error { return rejected })(mapRefusing(errMap)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := svc.Call(t.Context(), "")
			require.ErrorIs(t, err, errMap, "all else is found")
			require.ErrorContains(t, err, "second")
			for _, kind := range []error{layer.ErrNotReady, layer.ErrClosed, layer.ErrFailFast} {
				require.NotErrorIs(t, err, kind)
			}
			var where *layer.Error
			require.ErrorAs(t, err, &where)
		})
	}
}

func TestMapLayersSeeNoRefusals(t *testing.T) {
	seen := 0
	for name, l := range map[string]layer.Layer[string, string]{
		"map_response": layer.MapResponse[string](func(rsp string) string { seen++; return rsp }),
		"map_err":      layer.MapErr[string, string](func(err error) error { seen++; return err }),
	} {
		for _, rejection := range []error{layer.ErrNotReady, layer.ErrClosed, layer.ErrFailFast} {
			_, err := l(mapRefusing(rejection)).Call(t.Context(), "")
			require.Equal(t, rejection, err, name)
		}
	}
	require.Zero(t, seen)
}

func TestMapRequestLeavesTheCallersAlone(t *testing.T) {
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

func TestMapErr(t *testing.T) {
	wrap := layer.MapErr[string, string](func(err error) error { return fmt.Errorf("web: %w", err) })
	got, err := wrap(layer.Func[string, string](repeat)).Call(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "a", got)
	_, err = wrap(mapRefusing(errMap)).Call(t.Context(), "")
	require.EqualError(t, err, "web: no good")
	require.ErrorIs(t, err, errMap)

	forget := layer.MapErr[string, string](func(error) error { return nil })(mapRefusing(errMap))
	_, err = forget.Call(t.Context(), "")
	require.Equal(t, errMap, err, "an error cannot be lost")
	require.Equal(t, "map_err\nlayer.Func\n", layer.Describe(forget).String())
}

func TestMapLayersAllocateNothing(t *testing.T) {
	id := func(n int) int { return n }
	leaf := layer.Func[int, int](echo)
	for name, svc := range map[string]layer.Service[int, int]{
		"map": layer.Map(leaf, func(n int) (int, error) { return n, nil }, func(n int) (int, error) { return n, nil }),
		"stack": layer.NewStack[int, int]().With("req", layer.MapRequest[int, int](id)).With("rsp", layer.MapResponse[int](id)).
			With("err", layer.MapErr[int, int](func(err error) error { return err })).
			With("filter", layer.Filter[int, int](func(int) error { return nil })).Service(leaf),
	} {
		ctx := context.Background()
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(ctx, 1) }), name)
	}
}
