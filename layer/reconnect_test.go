package layer_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errReconnect = errors.New("connection refused")

// reconnectDialer makes connections or fails, as the test specifies.
type reconnectDialer struct {
	dials   atomic.Int64
	started time.Time

	mu   sync.Mutex
	dial func(ctx context.Context) (layer.Service[int, int], error)
	at   []time.Duration // of each, since the start
}

func newReconnectDialer() *reconnectDialer { return &reconnectDialer{started: time.Now()} }

func (d *reconnectDialer) connect(ctx context.Context) (layer.Service[int, int], error) {
	d.dials.Add(1)
	d.mu.Lock()
	d.at = append(d.at, time.Since(d.started))
	dial := d.dial
	d.mu.Unlock()
	return dial(ctx)
}

func (d *reconnectDialer) times() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.at)
}

func (d *reconnectDialer) does(dial func(ctx context.Context) (layer.Service[int, int], error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dial = dial
}

func (d *reconnectDialer) fails() {
	d.does(func(context.Context) (layer.Service[int, int], error) { return nil, errReconnect })
}

func (d *reconnectDialer) makes(svc layer.Service[int, int]) {
	d.does(func(context.Context) (layer.Service[int, int], error) { return svc, nil })
}

// reconnectConn is a connection that can close.
type reconnectConn struct {
	breakerInner
	gone atomic.Bool
}

func (c *reconnectConn) close() { c.gone.Store(true) }

func (c *reconnectConn) Ready(context.Context) error {
	if c.gone.Load() {
		return &layer.Error{Layer: "conn", Kind: layer.ErrClosed}
	}
	return nil
}

func (c *reconnectConn) Call(ctx context.Context, req int) (int, error) {
	if err := c.Ready(ctx); err != nil {
		return 0, err
	}
	return c.breakerInner.Call(ctx, req)
}

// reconnecting runs f with a service. The context of the service ends after f.
func reconnecting(t *testing.T, f func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newReconnectDialer()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		steady := layer.Backoff{Min: 100 * time.Millisecond, Max: time.Minute}
		f(t, d, layer.Reconnect(ctx, d.connect, steady, layer.WithTarget[int]("web")), stop)
	})
}

func TestReconnectOnDemand(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.makes(&reconnectConn{})
		time.Sleep(time.Hour)
		require.Zero(t, d.dials.Load(), "no caller needs it")
		err := breakerCalls(t, svc, 1)
		require.EqualError(t, err, "reconnect web: not ready: connecting")
		require.ErrorIs(t, err, layer.ErrNotReady)
		synctest.Wait()
		require.NoError(t, breakerCalls(t, svc, 1), "the rejection began an attempt")
		require.NoError(t, svc.Ready(t.Context()))
		require.EqualValues(t, 1, d.dials.Load())
		require.Equal(t, "connected", breakerState(svc, "state"))
	})
}

func TestReconnectOneConnectAtATime(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.does(func(context.Context) (layer.Service[int, int], error) {
			time.Sleep(time.Second)
			return &reconnectConn{}, nil
		})
		var ready atomic.Int64
		for i := range 100 {
			go func() {
				if i%2 == 0 {
					svc.Call(t.Context(), 0)
				}
				if assert.NoError(t, svc.Ready(t.Context())) {
					ready.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Zero(t, ready.Load())
		require.Equal(t, "connecting", breakerState(svc, "state"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, 100, ready.Load())
		require.EqualValues(t, 1, d.dials.Load())
	})
}

func TestReconnectBackoff(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.fails()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := svc.Ready(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "last error: connection refused")
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}, d.times())
		err = breakerCalls(t, svc, 1)
		require.EqualError(t, err, "reconnect web: not ready: next attempt in 100ms: connection refused")
		require.ErrorIs(t, err, errReconnect)
		after, _ := layer.RetryAfter(err)
		require.Equal(t, 100*ms, after)
		require.Equal(t, "waiting", breakerState(svc, "state"))
		require.EqualValues(t, 5, breakerState(svc, "failures"))

		// All callers have left, so no connect follows the one in progress.
		time.Sleep(time.Hour)
		require.EqualValues(t, 6, d.dials.Load())
		require.Equal(t, "idle", breakerState(svc, "state"))
		breakerCalls(t, svc, 10)
		synctest.Wait()
		require.EqualValues(t, 7, d.dials.Load(), "the wait has long passed")
	})
}

// tower#244: one error of the inner service was stored and returned to all later callers.
func TestReconnectAfterError(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.fails()
		breakerCalls(t, svc, 1)
		synctest.Wait()
		conn := &reconnectConn{}
		d.makes(conn)
		require.ErrorIs(t, breakerCalls(t, svc, 1), errReconnect)
		require.NoError(t, svc.Ready(t.Context()))
		require.NoError(t, breakerCalls(t, svc, 1))
		conn.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 100), errBreaker)
		conn.with(nil)
		require.NoError(t, breakerCalls(t, svc, 1), "errors are the request's")
		conn.close()
		d.makes(&reconnectConn{})
		require.ErrorIs(t, breakerCalls(t, svc, 1), layer.ErrNotReady)
		synctest.Wait()
		require.NoError(t, breakerCalls(t, svc, 1), "nor is a closed connection the end")
	})
}

func TestReconnectClosedConnection(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		conn := &reconnectConn{}
		d.makes(conn)
		require.NoError(t, svc.Ready(t.Context()))
		require.NoError(t, breakerCalls(t, svc, 1))
		conn.close()
		d.does(func(context.Context) (layer.Service[int, int], error) {
			time.Sleep(time.Millisecond) // it is under way when the call returns
			return nil, errReconnect
		})
		err := breakerCalls(t, svc, 1)
		require.EqualError(t, err, "reconnect web: not ready: connecting, last error: conn: closed")
		require.NotErrorIs(t, err, layer.ErrClosed, "the connection has closed, this service has not")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 2, d.dials.Load(), "at once, because the connection was good")
		require.ErrorContains(t, breakerCalls(t, svc, 1), "next attempt in 100ms", "the backoff starts again")

		conn = &reconnectConn{}
		d.makes(conn)
		require.NoError(t, svc.Ready(t.Context()))
		require.NoError(t, breakerCalls(t, svc, 1))
		conn.close()
		d.makes(&reconnectConn{})
		require.NoError(t, svc.Ready(t.Context()), "Ready drops it, too")
		require.NoError(t, breakerCalls(t, svc, 1))
	})
}

func TestReconnectClosedAtOnce(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		gone := &reconnectConn{}
		gone.close()
		d.makes(gone)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, svc.Ready(ctx), context.DeadlineExceeded)
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}, d.times())

		conn := &reconnectConn{}
		conn.with(errBreaker)
		d.makes(conn)
		require.NoError(t, svc.Ready(t.Context()))
		require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker)
		conn.close()
		require.ErrorContains(t, breakerCalls(t, svc, 1), "next attempt in 3.2s", "it has answered nothing")
		d.makes(&reconnectConn{})
		require.NoError(t, svc.Ready(t.Context()))
	})
}

// If the other end closes an unused connection because of its age, this is not a failure.
func TestReconnectClosedAfterBackoffMax(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		for range 5 {
			conn := &reconnectConn{}
			d.makes(conn)
			start := time.Now()
			require.NoError(t, svc.Ready(t.Context()))
			require.Zero(t, time.Since(start))
			time.Sleep(time.Minute)
			conn.close()
		}
	})
}

func TestReconnectContext(t *testing.T) {
	for name, dial := range map[string]func(ctx context.Context) (layer.Service[int, int], error){
		"while it connects": func(ctx context.Context) (layer.Service[int, int], error) { <-ctx.Done(); return nil, ctx.Err() },
		"while it waits":    func(context.Context) (layer.Service[int, int], error) { return nil, errReconnect },
		"deaf": func(context.Context) (layer.Service[int, int], error) {
			time.Sleep(time.Hour)
			return &reconnectConn{}, nil
		},
		"while what it made has no room": func(context.Context) (layer.Service[int, int], error) {
			return layer.Limit[int, int](0)(&reconnectConn{}), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], stop func()) {
				d.does(dial)
				done := make(chan error)
				go func() { done <- svc.Ready(context.Background()) }()
				time.Sleep(time.Minute)
				stop()
				err := <-done
				require.Equal(t, time.Minute, time.Since(d.started), "at once")
				require.ErrorIs(t, err, layer.ErrClosed)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, breakerCalls(t, svc, 1), layer.ErrClosed)
				require.ErrorIs(t, layer.Poll(svc), layer.ErrClosed)
				require.Equal(t, "closed", breakerState(svc, "state"))
				dials := d.dials.Load()
				time.Sleep(2 * time.Hour)
				require.Equal(t, dials, d.dials.Load())
			})
		})
	}
}

func TestReconnectPanicAndGoexit(t *testing.T) {
	for want, dial := range map[string]func(ctx context.Context) (layer.Service[int, int], error){
		": ours":                           func(context.Context) (layer.Service[int, int], error) { panic("ours") },
		"the callback ended its goroutine": func(context.Context) (layer.Service[int, int], error) { runtime.Goexit(); return nil, nil },
		"connect returned no service":      func(context.Context) (layer.Service[int, int], error) { return nil, nil },
	} {
		t.Run(want, func(t *testing.T) {
			reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
				d.does(dial)
				breakerCalls(t, svc, 1)
				synctest.Wait()
				require.ErrorContains(t, breakerCalls(t, svc, 1), want)
				d.makes(&reconnectConn{})
				require.NoError(t, svc.Ready(t.Context()))
				require.NoError(t, breakerCalls(t, svc, 1))
			})
		})
	}
}

// A rejection contains the failure of a connect that another caller waited for.
func TestReconnectPollReportsCause(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.fails()
		q := layer.Queue[int, int](10, 50*time.Millisecond)(svc)
		err := breakerCalls(t, q, 1)
		require.ErrorIs(t, err, layer.ErrFailFast)
		require.ErrorIs(t, err, errReconnect)
		err = breakerCalls(t, q, 1)
		require.NotErrorIs(t, err, layer.ErrFailFast)
		require.ErrorIs(t, err, errReconnect)
		require.EqualError(t, err, "queue: not ready: in fail-fast for 0s: reconnect web: not ready: next attempt in 50ms: connection refused")
		require.EqualError(t, layer.Poll(svc), "reconnect web: not ready: next attempt in 50ms: connection refused")
	})
}

func TestReconnectDoneContext(t *testing.T) {
	reconnecting(t, func(t *testing.T, d *reconnectDialer, svc layer.Service[int, int], _ func()) {
		d.does(func(context.Context) (layer.Service[int, int], error) {
			time.Sleep(time.Millisecond) // it is under way when Ready returns
			return &reconnectConn{}, nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errBreaker)
		_, err := svc.Call(ctx, 0)
		require.ErrorIs(t, err, errBreaker)
		require.ErrorIs(t, err, layer.ErrNotReady)
		synctest.Wait()
		require.Zero(t, d.dials.Load())
		require.ErrorIs(t, svc.Ready(ctx), errBreaker)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.NoError(t, svc.Ready(ctx), "a poll connects")
	})
}

func TestReconnectCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connects, rejected := byLabel{}, byLabel{}
		d := newReconnectDialer()
		d.fails()
		svc := layer.Reconnect(t.Context(), d.connect, layer.Backoff{},
			layer.WithMetrics[int](layer.Instruments{ConnectAttempts: connects, LayerRejections: rejected}))
		breakerCalls(t, svc, 1)
		synctest.Wait()
		breakerCalls(t, svc, 1)
		time.Sleep(time.Second)
		d.makes(&reconnectConn{})
		require.NoError(t, svc.Ready(t.Context()))
		require.Equal(t, []counter{2, 1, 2}, []counter{*connects["failure"], *connects["success"], *rejected["reconnect"]})
		require.EqualValues(t, 2, breakerState(svc, "failed"))
		require.Len(t, layer.Describe(svc).Children, 1)
	})
}
