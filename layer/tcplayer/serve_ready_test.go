package tcplayer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// gated is a Server that holds connections and has its own readiness.
type gated struct {
	Server
	ready *layertest.Mock[net.Conn, ByteCount]
}

func (g gated) Ready(ctx context.Context) error { return g.ready.Ready(ctx) }

func newGated() gated { return gated{holding(), layertest.NewMock[net.Conn, ByteCount]()} }

// Clients of a starting process wait, and are not rejected later when it is
// busy.
func TestServeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		var log bytes.Buffer
		g := newGated()
		end, done := serving(t, &p, g, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		early := p.dial(t)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		assert.Equal(t, 2, bytes.Count(log.Bytes(), []byte("not accepting connections")), "after 15 and 30 s")
		g.ready.Allow(1)
		require.NoError(t, say(early))
		synctest.Wait()
		assert.Equal(t, 2, bytes.Count(log.Bytes(), []byte("level=WARN")))
		g.ready.Deny()
		late := p.dial(t)
		require.NoError(t, say(late))
		early.Close()
		late.Close()
		end()
		require.NoError(t, <-done)
	})
}

func TestServeEndsBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		end, done := serving(t, &p, newGated())
		synctest.Wait()
		end()
		require.NoError(t, <-done)
	})
	synctest.Test(t, func(t *testing.T) {
		var p place
		g := newGated()
		_, done := serving(t, &p, g)
		time.AfterFunc(time.Minute, g.ready.Close)
		err := <-done
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "serve "+addr+": not ready: ")
	})
}

// If one context ends Serve and svc, Serve returns nil.
func TestServeSharedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var p place
		p.open(t)
		refused := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
		e := NewEndpoint(ctx, addr, WithDialContext(refused))
		_, err := e.Call(ctx, Request{})
		require.Error(t, err)
		done := make(chan error)
		var log bytes.Buffer
		go func() { done <- Serve(ctx, p.l, Forward(e), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))) }()
		synctest.Wait()
		end()
		require.NoError(t, <-done)
		assert.Empty(t, log.String())
	})
}

// broken is not ready and does not wait.
type broken struct{ Server }

func (broken) Ready(context.Context) error { return errors.New("no") }

func TestServeReadyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		var log bytes.Buffer
		end, done := serving(t, &p, broken{holding()}, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		time.Sleep(time.Minute + time.Second)
		end()
		require.NoError(t, <-done)
		assert.Equal(t, 4, bytes.Count(log.Bytes(), []byte("not accepting connections")))
	})
}
