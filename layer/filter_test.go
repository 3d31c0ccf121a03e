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
	require.NotErrorIs(t, err, layer.ErrNotReady, "nobody waits for it, or sends it elsewhere")
	require.EqualError(t, err, "filter web: forbidden")
	got, err := svc.Call(t.Context(), "ann")
	require.NoError(t, err)
	require.Equal(t, "ann", got)
	require.Equal(t, 1, served)
	require.Equal(t, "filter     rejected=1\nlayer.Func\n", layer.Describe(svc).String())
}

func TestFilterForwardsReadyAndRefusals(t *testing.T) {
	svc := layer.Filter[string, string](func(string) error { return nil })(layer.Limit[string, string](0)(greet))
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	_, err := svc.Call(t.Context(), "ann")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.EqualValues(t, 0, layer.Describe(svc).State.Get("rejected"))
}

func TestIfChoosesForEachRequest(t *testing.T) {
	svc := layer.NewStack[string, string]().
		With("if", layer.If(func(req string) bool { return req[0] == 'a' }, tagged("+"))).
		With("all", tagged("!")).Service(layer.Func[string, string](repeat))
	for req, want := range map[string]string{"a": "a+!", "b": "b!"} {
		got, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestIfShowsBothWays(t *testing.T) {
	svc := layer.If(func(string) bool { return true }, layer.Limit[string, string](8))(greet)
	require.Equal(t, ""+
		"if\n"+
		"  limit      in_flight=0 max=8\n"+
		"  next\n"+
		"layer.Func\n", layer.Describe(svc).String())
}

// tower's Steer is ready when all of its services are (tower/src/steer/mod.rs):
// one that is not holds up the requests for the others.
func TestIfIsReadyForThoseThatGoPast(t *testing.T) {
	svc := layer.If(func(req string) bool { return req == "slow" }, layer.Limit[string, string](0))(greet)
	require.NoError(t, svc.Ready(t.Context()))
	got, err := svc.Call(t.Context(), "fast")
	require.NoError(t, err)
	require.Equal(t, "hello fast", got)
	_, err = svc.Call(t.Context(), "slow")
	require.ErrorIs(t, err, layer.ErrNotReady)
}
