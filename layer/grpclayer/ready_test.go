package grpclayer

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// A queue above the balancer is in fail-fast until an endpoint is ready.
func TestReadyFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(NewStack().Queue(100, time.Second).Layer()))
		_, err := call(t.Context(), cc)
		require.ErrorIs(t, err, layer.ErrFailFast)
		for range 3 {
			start := time.Now()
			_, err = call(t.Context(), cc)
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.NotErrorIs(t, err, layer.ErrFailFast, "refused at once")
			require.ErrorContains(t, err, "in fail-fast")
			assert.Zero(t, time.Since(start))
		}
		serve(t, &n, a1)
		time.Sleep(5 * time.Minute) // it is connected again
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
	})
}

// Readiness of the balancer of one ClientConn does not apply to another one
// with the same options.
func TestReadyTwoClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		opts := append(DialOptions(name, named{"up:80": a1, "down:80": a2}, WithCallLayer(NewStack().Queue(100, time.Second).Layer())), over(&n)...)
		down, err := grpc.NewClient(name+":///down:80", opts...)
		require.NoError(t, err)
		defer down.Close()
		up, err := grpc.NewClient(name+":///up:80", opts...)
		require.NoError(t, err)
		defer up.Close()
		_, err = call(t.Context(), down)
		require.ErrorIs(t, err, layer.ErrFailFast)
		_, err = call(t.Context(), up)
		require.NoError(t, err)
	})
}

// named resolves each name to one address.
type named map[string]string

func (r named) Resolve(ctx context.Context, name string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if yield(replace(r[name]).update, nil) {
			<-ctx.Done()
		}
	}
}

// A call that waits in a queue does not keep a ClientConn from becoming idle,
// and ends its idle state.
func TestReadyIdleClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var svc Service
		grab := func(next Service) Service {
			svc = next
			return next
		}
		news := newSource(replace())
		opts := append(DialOptions(name, news, WithCallLayer(grab)), append(over(&n), grpc.WithIdleTimeout(time.Minute))...)
		one, err := grpc.NewClient(name+":///web:80", opts...)
		require.NoError(t, err)
		defer one.Close()
		require.NoError(t, layer.Poll(svc), "new")
		one.Connect()
		synctest.Wait()
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)

		waited := make(chan error, 1)
		start := time.Now()
		go func() { waited <- svc.Ready(t.Context()) }()
		require.NoError(t, <-waited)
		assert.Equal(t, time.Minute, time.Since(start), "idle")
		synctest.Wait()
		require.NoError(t, layer.Poll(svc))

		news <- replace()
		one.Connect()
		synctest.Wait()
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.NoError(t, one.Close())
		synctest.Wait()
		require.NoError(t, layer.Poll(svc), "closed")
	})
}
