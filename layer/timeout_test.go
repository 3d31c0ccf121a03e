package layer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestTimeoutEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Timeout[int, int](5*time.Second, layer.For[int]("web:80"))(
			layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}))
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, 5*time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, layer.ErrNotReady, "it may have been processed")
		require.EqualError(t, err, "timeout web:80 (waited 5s): limit of 5s is over")
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())
	})
}

func TestTimeoutCoversTheWait(t *testing.T) { // tower-rs/tower#648
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int, int]().Timeout(time.Second).Queue(10, time.Minute).Service(&gate{})
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.ErrorIs(t, err, layer.ErrNotReady, "it was never sent")
	})
}

func TestTimeoutLeavesTheCallersEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		svc := layer.Timeout[int, int](time.Minute)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}))
		go cancel(gone)
		_, err := svc.Call(ctx, 1)
		require.Equal(t, gone, err)
	})
}

// waitingBody ends when its context does.
type waitingBody struct{ ctx context.Context }

func (b waitingBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, context.Cause(b.ctx)
	}
	p[0] = '.'
	return 1, nil
}
func (waitingBody) Close() error { return nil }

func TestTimeoutContextLivesUntilTheBodyIsClosed(t *testing.T) { // failsafe-go#65, #123
	synctest.Test(t, func(t *testing.T) {
		var inner context.Context
		svc := layer.Timeout[int, *response](5 * time.Second)(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				inner = ctx
				return &response{Body: waitingBody{ctx}}, nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = rsp.Body.Read(make([]byte, 1))
		require.NoError(t, err, "the response is still being read")
		require.NoError(t, inner.Err())
		require.NoError(t, rsp.Body.Close())
		require.ErrorIs(t, inner.Err(), context.Canceled)

		rsp, err = svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		_, err = io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, layer.ErrTimeout, "the limit holds for the body too")
	})
}

func TestTimeoutReleasesItsContextWhenInnerPanics(t *testing.T) {
	var inner context.Context
	svc := layer.Timeout[int, int](time.Hour)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		inner = ctx
		panic("boom")
	}))
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), 1) })
	require.Error(t, inner.Err())
}

func TestTimeoutOfNothingIsNoLayer(t *testing.T) {
	inner := layer.Func[int, int](echo)
	svc := layer.Timeout[int, int](0)(inner)
	_, same := svc.(layer.Func[int, int])
	require.True(t, same)
}
