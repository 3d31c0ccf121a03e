package layer_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// sharing returns two services with the same shared layer. They return 1 and 2 after a second.
func sharing(l layer.Layer[int, int]) (a, b layer.Service[int, int]) {
	both := layer.Shared(l)
	leaf := func(n int) layer.Service[int, int] {
		return layer.Func[int, int](func(ctx context.Context, _ int) (int, error) { return answers(n, time.Second)(ctx) })
	}
	return layer.NewStack[int, int]().With("first", both).Service(leaf(1)), layer.NewStack[int, int]().With("second", both).Service(leaf(2))
}

func TestSharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sharing(layer.Limit[int, int](1))
		go func() {
			rsp, err := a.Call(t.Context(), 0)
			assert.NoError(t, err)
			assert.Equal(t, 1, rsp)
		}()
		synctest.Wait()
		_, err := b.Call(t.Context(), 0)
		require.EqualError(t, err, "limit: not ready: 1 of 1 in flight")
		require.Error(t, layer.Poll(b))
		require.NoError(t, b.Ready(t.Context()), "after a second")
		rsp, err := b.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, 2, rsp)
		assert.Equal(t, "second     in_flight=0 max=1 rejected=1 shared=true\nlayer.Func\n", layer.Describe(b).String())
	})
}

func TestSharedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sharing(layer.RateLimit[int, int](1, 1))
		_, err := a.Call(t.Context(), 0)
		require.NoError(t, err)
		_, err = b.Call(t.Context(), 0)
		require.NoError(t, err)
		_, err = a.Call(t.Context(), 0)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err = a.Call(ctx, 0)
		require.ErrorIs(t, err, context.DeadlineExceeded, "it has the only token")
		_, err = b.Call(t.Context(), 0)
		require.ErrorIs(t, err, layer.ErrNotReady)
	})
}

func TestSharedBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := layer.Shared(layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 3, Backoff: breakerBackoff}))
		bad := both(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errFleet }))
		well := both(layer.Func[int, int](echo))
		for range 3 {
			_, err := bad.Call(t.Context(), 0)
			require.ErrorIs(t, err, errFleet)
		}
		_, err := well.Call(t.Context(), 0)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NoError(t, well.Ready(t.Context()))
		_, err = well.Call(t.Context(), 0)
		require.NoError(t, err)
		_, err = bad.Call(t.Context(), 0)
		require.ErrorIs(t, err, errFleet, "the breaker is closed")
	})
}

// The capacity for a Shed above is that of the shared limit.
func TestSharedUnderShed(t *testing.T) {
	svc := layer.Shed[int, int](layer.ShedPolicy{})(layer.Shared(layer.Limit[int, int](7))(layer.Func[int, int](echo)))
	require.EqualValues(t, 7, layer.Describe(svc).State.Get("capacity"))
}

// A layer may make a context of its own, which has no service.
func TestSharedWithoutContext(t *testing.T) {
	detached := func(next layer.Service[int, int]) layer.Service[int, int] {
		return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return next.Call(context.Background(), req) })
	}
	_, err := layer.Shared(detached)(layer.Func[int, int](echo)).Call(t.Context(), 1)
	require.EqualError(t, err, "shared: not ready: the layer does not pass the context of the request")
}

func ExampleShared() {
	// Requests of both services together: 100 at a time.
	limit := layer.Shared(layer.Limit[string, string](100))
	read := layer.NewStack[string, string]().With("limit", limit).Service(layer.Func[string, string](
		func(_ context.Context, key string) (string, error) { return "value of " + key, nil }))
	write := layer.NewStack[string, string]().With("limit", limit).Service(layer.Func[string, string](
		func(_ context.Context, key string) (string, error) { return key + " is written", nil }))

	fmt.Println(read.Call(context.Background(), "color"))
	fmt.Println(write.Call(context.Background(), "color"))
	// Output:
	// value of color <nil>
	// color is written <nil>
}
