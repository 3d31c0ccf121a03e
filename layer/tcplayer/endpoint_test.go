package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

const addr = "10.0.0.1:80"

// place is an address on a network in memory, with or without a listener.
type place struct {
	network layertest.Network
	l       net.Listener
	dials   atomic.Int64
}

func (p *place) open(t testing.TB) {
	l, err := p.network.Listen("tcp", addr)
	require.NoError(t, err)
	p.l = l
}

func (p *place) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	p.dials.Add(1)
	return p.network.DialContext(ctx, network, addr)
}

// steady is a backoff without jitter: 1 s, 2 s, 4 s.
func steady() layer.Backoff { return layer.Backoff{Min: time.Second, Max: 4 * time.Second} }

func (p *place) endpoint(ctx context.Context, opts ...EndpointOption) *Endpoint {
	return NewEndpoint(ctx, addr, append([]EndpointOption{WithDialContext(p.DialContext), WithBackoff(steady())}, opts...)...)
}

func TestEndpointConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		e := p.endpoint(t.Context())
		require.NoError(t, layer.Poll[Request, net.Conn](e))
		ctx, cancel := context.WithCancel(t.Context())
		near, err := e.Call(ctx, Request{})
		require.NoError(t, err)
		far, err := p.l.Accept()
		require.NoError(t, err)
		cancel() // limits only the connect attempt
		synctest.Wait()
		_, err = io.WriteString(near, "hello")
		require.NoError(t, err)
		require.NoError(t, near.Close())
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(got))
	})
}

func TestEndpointBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		e := p.endpoint(t.Context())
		refused := func(dials int64, after time.Duration) {
			t.Helper()
			_, err := e.Call(t.Context(), Request{})
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorContains(t, err, "endpoint "+addr+": not ready: no connection: ")
			got, _ := layer.RetryAfter(err)
			assert.Equal(t, after, got)
			assert.Equal(t, dials, p.dials.Load())
			require.ErrorIs(t, layer.Poll[Request, net.Conn](e), layer.ErrNotReady)
			assert.Equal(t, dials, p.dials.Load(), "a poll tried")
		}
		refused(1, 0)
		refused(1, time.Second)
		time.Sleep(time.Second / 2)
		refused(1, time.Second/2)
		time.Sleep(time.Second / 2)
		refused(2, 0) // without a waiting Ready the call is the probe
		refused(2, 2*time.Second)
		time.Sleep(2 * time.Second)
		refused(3, 0)
		time.Sleep(4 * time.Second)
		refused(4, 0)
		refused(4, 4*time.Second)
		assert.Equal(t, "endpoint   addr="+addr+" connecting=0 made=0 link=down failures=4 retry_in=4s error="+
			"dial tcp "+addr+": connect: connection refused\n", layer.Describe[Request, net.Conn](e).String())

		p.open(t)
		refused(4, 4*time.Second)
		time.Sleep(4 * time.Second)
		conn, err := e.Call(t.Context(), Request{})
		require.NoError(t, err)
		conn.Close()
		require.NoError(t, layer.Poll[Request, net.Conn](e))
		assert.Equal(t, "endpoint   addr="+addr+" connecting=0 made=1 link=up\n", layer.Describe[Request, net.Conn](e).String())
		p.l.Close()
		refused(6, 0)
		refused(6, time.Second) // the backoff started again
	})
}

func TestEndpointReadyConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		e := p.endpoint(t.Context())
		_, err := e.Call(t.Context(), Request{})
		require.Error(t, err)
		ready := make(chan error, 100)
		start := time.Now()
		for range cap(ready) {
			go func() { ready <- e.Ready(t.Context()) }()
		}
		time.Sleep(6 * time.Second) // tried at 1, 3, 7
		assert.EqualValues(t, 3, p.dials.Load(), "one probe for all waiting calls")
		p.open(t)
		for range cap(ready) {
			require.NoError(t, <-ready)
		}
		assert.Equal(t, 7*time.Second, time.Since(start))
		assert.EqualValues(t, 4, p.dials.Load())
		conn, err := p.l.Accept()
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF, "the trial is not kept")
	})
}

func TestEndpointReadyCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		e := p.endpoint(t.Context())
		_, _ = e.Call(t.Context(), Request{})
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
		err := e.Ready(ctx)
		require.ErrorIs(t, err, why)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// Of concurrent failures one counts, and after the backoff one call connects.
func TestEndpointConcurrentFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		fail := make(chan struct{})
		e := p.endpoint(t.Context(), WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			p.dials.Add(1)
			select {
			case <-fail:
				return nil, errors.New("failed")
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		crowd := func() {
			for range 50 {
				go func() { _, _ = e.Call(t.Context(), Request{}) }()
			}
			synctest.Wait()
		}
		crowd()
		assert.EqualValues(t, 50, e.Describe().State.Get("connecting"))
		fail <- struct{}{}
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("failures"))
		time.Sleep(time.Second) // the others time out
		assert.Equal(t, 1, e.Describe().State.Get("failures"))
		crowd()
		assert.EqualValues(t, 51, p.dials.Load())
		close(fail)
		synctest.Wait()
		assert.Equal(t, 2, e.Describe().State.Get("failures"))
		assert.EqualValues(t, 0, e.Describe().State.Get("connecting"))
	})
}

// A link is not probed if it came up just before, even if Ready found it down.
func TestEndpointLinkUp(t *testing.T) {
	var l link
	require.True(t, l.report(false, io.EOF))
	isProbe, _, _ := l.admit()
	require.True(t, isProbe)
	require.True(t, l.report(true, nil))
	isProbe, wait, err := l.admit()
	require.NoError(t, err)
	require.False(t, isProbe)
	require.Zero(t, wait)
}
