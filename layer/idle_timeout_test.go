package layer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// paced is a body with a pause before each piece. It ends with its context.
type paced struct {
	ctx    context.Context
	pauses []time.Duration
}

func (b *paced) Read(p []byte) (int, error) {
	if len(b.pauses) == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(b.pauses[0]):
		b.pauses = b.pauses[1:]
		return copy(p, "."), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (*paced) Close() error { return nil }

func pacedBy(pauses ...time.Duration) layer.Func[int, *response] {
	return func(ctx context.Context, _ int) (*response, error) {
		return &response{Body: &paced{ctx, pauses}}, nil
	}
}

func TestIdleTimeoutSilentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inner context.Context
		expired := byLabel{}
		svc := layer.IdleTimeout[int](time.Second, layer.WithTarget[*response]("web:80"),
			layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				inner = ctx
				time.Sleep(time.Minute) // the head is not its business
				return &response{Body: &paced{ctx, []time.Duration{900 * time.Millisecond, time.Hour}}}, nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		start := time.Now()
		got, err := io.ReadAll(rsp.Body)
		assert.Equal(t, 1900*time.Millisecond, time.Since(start))
		require.Equal(t, ".", string(got))
		require.ErrorIs(t, err, layer.ErrIdleTimeout)
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.EqualError(t, err, "idle timeout web:80 (waited 1s): context canceled")
		require.EqualError(t, context.Cause(inner), "limit of 1s on silence exceeded")
		require.NoError(t, rsp.Body.Close())
		require.EqualValues(t, 1, *expired["idle"])
		require.Equal(t, "idle_timeout after=1s expired=1\nlayer.Func\n", layer.Describe(svc).String())
	})
}

func TestIdleTimeoutSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.IdleTimeout[int, *response](time.Second)(pacedBy(time.Second-1, time.Second-1, time.Second-1))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		for range 3 {
			_, err = rsp.Body.Read(make([]byte, 8))
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		_, err = rsp.Body.Read(make([]byte, 8))
		require.Equal(t, io.EOF, err)
	})
}

// The body fails if and only if one Read waits for longer than the limit. The pauses of the
// reader do not matter.
func TestIdleTimeoutPerRead(t *testing.T) {
	const limit = 100 * time.Millisecond
	around := rapid.SampledFrom([]time.Duration{0, 1, limit / 2, limit - 1, limit + 1, 3 * limit})
	rapid.Check(t, func(rt *rapid.T) {
		source := rapid.SliceOfN(around, 1, 8).Draw(rt, "source")
		reader := rapid.SliceOfN(around, 9, 9).Draw(rt, "reader")
		pieces, late := 0, false
		for _, pause := range source {
			if late = pause > limit; late {
				break
			}
			pieces++
		}
		synctest.Test(t, func(t *testing.T) {
			rsp, err := layer.IdleTimeout[int, *response](limit)(pacedBy(source...)).Call(t.Context(), 1)
			require.NoError(t, err)
			got := 0
			for err == nil {
				time.Sleep(reader[got])
				var n int
				n, err = rsp.Body.Read(make([]byte, 8))
				got += n
			}
			assert.Equal(t, pieces, got)
			if late {
				assert.ErrorIs(t, err, layer.ErrIdleTimeout)
			} else {
				assert.Equal(t, io.EOF, err)
			}
			assert.NoError(t, rsp.Body.Close())
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// A piece that arrives exactly at the limit is either returned or late, but never both.
func TestIdleTimeoutDataAtLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			rsp, err := layer.IdleTimeout[int, *response](time.Second)(pacedBy(time.Second, 0)).Call(t.Context(), 1)
			require.NoError(t, err)
			got, err := io.ReadAll(rsp.Body)
			if err != nil {
				require.ErrorIs(t, err, layer.ErrIdleTimeout)
			} else {
				require.Equal(t, "..", string(got))
			}
			require.NoError(t, rsp.Body.Close())
		}
	})
}

// A timer that was not stopped would end and count a request that is already over.
func TestIdleTimeoutStopsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		svc := layer.IdleTimeout[int](time.Minute, layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(pacedBy(0, 0))
		for how := range 3 {
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			switch how {
			case 0:
				_, _ = rsp.Body.Read(make([]byte, 8))
			case 1:
				_, _ = io.ReadAll(rsp.Body)
				_, err = rsp.Body.Read(make([]byte, 8))
				require.Equal(t, io.EOF, err)
			}
			time.Sleep(time.Hour)
			require.NoError(t, rsp.Body.Close())
			time.Sleep(time.Hour)
		}
		require.Zero(t, *expired["idle"])
	})
}

func TestIdleTimeoutCanceledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		rsp, err := layer.IdleTimeout[int, *response](time.Minute)(pacedBy(time.Hour)).Call(ctx, 1)
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { cancel(errors.New("gone")) })
		_, err = rsp.Body.Read(make([]byte, 8))
		require.Equal(t, context.Canceled, err)
	})
}

// ignoresContext is a body that ignores its context.
type ignoresContext struct{ until chan struct{} }

func (d ignoresContext) Read([]byte) (int, error) { <-d.until; return 0, io.EOF }
func (ignoresContext) Close() error               { return nil }

// A canceled request is over, even while a Read is still waiting.
func TestIdleTimeoutCanceledDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		body := ignoresContext{make(chan struct{})}
		svc := layer.IdleTimeout[int](time.Minute, layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(
			layer.Func[int, *response](func(context.Context, int) (*response, error) { return &response{Body: body}, nil }))
		ctx, cancel := context.WithCancel(t.Context())
		rsp, err := svc.Call(ctx, 1)
		require.NoError(t, err)
		time.AfterFunc(time.Second, cancel)
		time.AfterFunc(time.Hour, func() { close(body.until) })
		_, err = rsp.Body.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.Zero(t, *expired["idle"])
	})
}

// silentStream is an upgraded connection.
type silentStream struct{ *paced }

func (silentStream) Write(p []byte) (int, error) { return len(p), nil }

func TestIdleTimeoutUpgradedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.IdleTimeout[int, *response](time.Second)(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				return &response{Body: silentStream{&paced{ctx, []time.Duration{time.Hour}}}}, nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		_, ok := rsp.Body.(io.Writer)
		require.True(t, ok)
		_, err = rsp.Body.Read(make([]byte, 8))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
	})
}

func TestIdleTimeoutReleasesContext(t *testing.T) {
	var inner context.Context
	svc := layer.IdleTimeout[int, *response](time.Hour)(
		layer.Func[int, *response](func(ctx context.Context, how int) (*response, error) {
			inner = ctx
			switch how {
			case 0:
				panic("boom")
			case 1:
				return nil, errors.New("boom")
			}
			return bodyOf("x"), nil
		}))
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), 0) })
	require.Error(t, inner.Err())
	_, err := svc.Call(t.Context(), 1)
	require.EqualError(t, err, "boom")
	require.Error(t, inner.Err())
	rsp, err := svc.Call(t.Context(), 2)
	require.NoError(t, err)
	require.NoError(t, inner.Err())
	require.NoError(t, rsp.Body.Close())
	require.Error(t, inner.Err())
}

func TestIdleTimeoutZero(t *testing.T) {
	_, same := layer.IdleTimeout[int, *response](0)(plain).(layer.Func[int, *response])
	require.True(t, same)
	_, same = layer.IdleTimeout[int, int](time.Second)(layer.Func[int, int](echo)).(layer.Func[int, int])
	require.True(t, same, "there is no body")
}
