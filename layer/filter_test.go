package layer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestFilterRejects(t *testing.T) {
	forbidden := errors.New("forbidden")
	served := 0
	svc := layer.Filter(func(req string) error {
		if req == "admin" {
			return forbidden
		}
		return nil
	}, layer.WithTarget[string]("web"))(layer.Func[string, string](func(_ context.Context, req string) (string, error) {
		served++
		return req, nil
	}))
	_, err := svc.Call(t.Context(), "admin")
	require.ErrorIs(t, err, forbidden)
	require.NotErrorIs(t, err, layer.ErrNotReady, "a queue does not wait, and the request is not sent elsewhere")
	require.EqualError(t, err, "filter web: forbidden")
	got, err := svc.Call(t.Context(), "ann")
	require.NoError(t, err)
	require.Equal(t, "ann", got)
	require.Equal(t, 1, served)
	require.Equal(t, "filter     rejected=1\nlayer.Func\n", layer.Describe(svc).String())
}

func TestFilterForwardsRejections(t *testing.T) {
	svc := layer.Filter[string, string](func(string) error { return nil })(layer.Limit[string, string](0)(greet))
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	_, err := svc.Call(t.Context(), "ann")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.EqualValues(t, 0, layer.Describe(svc).State.Get("rejected"))
}
