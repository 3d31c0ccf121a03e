package tcplayer

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A time limit on Call does not end the connection after Call has returned. A
// time limit until the close does.
func TestStackTimeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		e := p.endpoint(t.Context())
		svc := NewStack().Timeout(time.Minute).ResponseHeaderTimeout(time.Second).Limit(1).Service(e)
		conn, err := svc.Call(t.Context(), Request{})
		require.NoError(t, err)
		far, err := p.l.Accept()
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		go conn.Write([]byte("x"))
		_, err = far.Read(make([]byte, 1))
		require.NoError(t, err)
		_, err = svc.Call(t.Context(), Request{})
		require.ErrorIs(t, err, layer.ErrNotReady)

		start := time.Now()
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, layer.ErrTimeout)
		assert.Equal(t, 30*time.Second, time.Since(start))
		require.NoError(t, conn.Close())
		conn, err = svc.Call(t.Context(), Request{})
		require.NoError(t, err)
		conn.Close()
	})
}

// A connection that loses a hedge is closed.
func TestStackHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu   sync.Mutex
			made []net.Conn
		)
		svc := NewStack().Hedge(layer.HedgePolicy[Request]{MinDelay: time.Second, MaxDelay: time.Second}).Service(layer.Func[Request, net.Conn](
			func(context.Context, Request) (net.Conn, error) {
				near, far := net.Pipe()
				mu.Lock()
				takes := []time.Duration{3 * time.Second, time.Second}[len(made)]
				made = append(made, far)
				mu.Unlock()
				time.Sleep(takes)
				return near, nil
			}))
		conn, err := svc.Call(t.Context(), Request{})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Len(t, made, 2)
		for i, open := range []bool{false, true} {
			made[i].SetReadDeadline(time.Now().Add(time.Second))
			_, err = made[i].Read(make([]byte, 1))
			assert.Equal(t, open, errors.Is(err, os.ErrDeadlineExceeded), "%d: %v", i, err)
		}
		conn.Close()
	})
}

func TestResend(t *testing.T) {
	near, far := net.Pipe()
	var r Bytes
	assert.True(t, r.Idempotent(Request{}))
	assert.Nil(t, r.Replay(Request{}, 1))
	_, says := r.RetryAfter(near, nil)
	assert.False(t, says)
	r.Drain(nil)
	r.Drain(near)
	_, err := far.Write([]byte("x"))
	assert.Error(t, err)
}
