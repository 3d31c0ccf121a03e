package layer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// The layer gets only the requests that match, and Ready is that of the layer.
func TestOnly(t *testing.T) {
	full := layer.Limit[string, string](1)
	held, release := make(chan struct{}), make(chan struct{})
	svc := layer.Only(func(name string) bool { return name != "health" }, full)(
		layer.Func[string, string](func(_ context.Context, name string) (string, error) {
			if name == "slow" {
				close(held)
				<-release
			}
			return "hello " + name, nil
		}))
	done := make(chan error)
	go func() {
		_, err := svc.Call(t.Context(), "slow")
		done <- err
	}()
	<-held
	_, err := svc.Call(t.Context(), "ann")
	require.ErrorIs(t, err, layer.ErrNotReady)
	rsp, err := svc.Call(t.Context(), "health")
	require.NoError(t, err)
	require.Equal(t, "hello health", rsp)
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	close(release)
	require.NoError(t, <-done)
	require.NoError(t, layer.Poll(svc))
	text := layer.Describe(svc).String()
	require.Contains(t, text, "only")
	require.Contains(t, text, "limit")
}
