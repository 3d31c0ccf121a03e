package layer_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

type response struct{ Body io.ReadCloser }

func bodyOf(s string) *response { return &response{Body: io.NopCloser(strings.NewReader(s))} }

func inFlight[Req, Rsp any](svc layer.Service[Req, Rsp]) int64 {
	return layer.Describe(svc).State.Get("in_flight").(int64)
}

func TestLimitConcurrentCallers(t *testing.T) { // tokio-rs/axum#2582: limits that are per clone
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		svc := layer.Limit[int, int](3)(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
			<-hold
			return req, nil
		}))
		var admitted, rejected int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				_, err := svc.Call(t.Context(), i)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					admitted++
				} else {
					assert.ErrorIs(t, err, layer.ErrNotReady)
					rejected++
				}
			})
		}
		synctest.Wait()
		assert.Equal(t, 97, rejected)
		assert.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		close(hold)
		wg.Wait()
		assert.Equal(t, 3, admitted)
		assert.NoError(t, layer.Poll(svc))
		assert.Zero(t, inFlight(svc))
	})
}

func TestLimitBody(t *testing.T) {
	ends := map[string]func(*testing.T, context.CancelFunc, io.ReadCloser){
		"read to the end": func(t *testing.T, _ context.CancelFunc, b io.ReadCloser) {
			_, err := io.ReadAll(b)
			require.NoError(t, err)
		},
		"closed early": func(t *testing.T, _ context.CancelFunc, b io.ReadCloser) {
			_, err := b.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, b.Close())
		},
		"closed twice": func(t *testing.T, _ context.CancelFunc, b io.ReadCloser) {
			require.NoError(t, b.Close())
			require.NoError(t, b.Close())
		},
		"abandoned": func(_ *testing.T, cancel context.CancelFunc, _ io.ReadCloser) {
			cancel()
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				svc := layer.Limit[int, *response](1)(layer.Func[int, *response](func(context.Context, int) (*response, error) {
					return bodyOf("some words"), nil
				}))
				rsp, err := svc.Call(ctx, 1)
				require.NoError(t, err)
				require.EqualValues(t, 1, inFlight(svc))
				_, err = svc.Call(t.Context(), 2)
				require.ErrorIs(t, err, layer.ErrNotReady)
				end(t, cancel, rsp.Body)
				synctest.Wait()
				require.Zero(t, inFlight(svc))
			})
		})
	}
}

func TestLimitAtReturn(t *testing.T) {
	svc := layer.Limit[int](1, layer.WithCompletion(layer.AtReturn[*response]))(
		layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("x"), nil }))
	_, err := svc.Call(t.Context(), 1)
	require.NoError(t, err)
	require.Zero(t, inFlight(svc))
}

func TestLimitReleasesSlot(t *testing.T) { // tower-rs/tower#408, #434: permits that leak
	boom := errors.New("boom")
	svc := layer.Limit[string, int](1)(layer.Func[string, int](func(_ context.Context, how string) (int, error) {
		switch how {
		case "error":
			return 0, boom
		case "panic":
			panic(how)
		case "goexit":
			runtime.Goexit()
		}
		return 0, nil
	}))
	_, err := svc.Call(t.Context(), "error")
	require.Equal(t, boom, err)
	require.PanicsWithValue(t, "panic", func() { _, _ = svc.Call(t.Context(), "panic") })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = svc.Call(t.Context(), "goexit")
	}()
	<-done
	require.Zero(t, inFlight(svc))
}

func TestLimitRejectsCanceledCaller(t *testing.T) { // golang/go#63615
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	called := false
	svc := layer.Limit[int, int](1)(layer.Func[int, int](func(context.Context, int) (int, error) {
		called = true
		return 0, nil
	}))
	_, err := svc.Call(ctx, 1)
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.False(t, called)
	require.NoError(t, svc.Ready(ctx), "capacity is looked at before ctx")
}

func TestLimitCountsRejections(t *testing.T) {
	rejected := byLabel{}
	svc := layer.Limit[int](0, layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(layer.Func[int, int](echo))
	require.Nil(t, layer.Describe(svc).State.Get("rejected"))
	var first error
	for range 3 {
		_, err := svc.Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrNotReady)
		if first == nil {
			first = err
		}
		require.Same(t, first, err, "rejecting costs no allocation")
	}
	require.EqualValues(t, 3, layer.Describe(svc).State.Get("rejected"))
	require.EqualValues(t, 3, *rejected["limit"])
}
