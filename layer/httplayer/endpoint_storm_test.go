package httplayer

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// slowReset is a connection on which it takes a moment to write a frame that
// resets a stream.
type slowReset struct{ net.Conn }

func (c slowReset) Write(p []byte) (int, error) {
	if len(p) > 9 && p[3] == frameRST {
		yield(50)
	}
	return c.Conn.Write(p)
}

func yield(n int) {
	for range n {
		runtime.Gosched()
	}
}

// Streams that are cancelled as soon as they begin, on a connection that is
// full. While a stream is being reset net/http counts it twice, so a RoundTrip
// that had reserved one waited, kept out all others, and, when these had
// reserved what came free, waited for them. Not in a bubble: what waits for a
// lock, as net/http does for a slow write, keeps the time of a bubble still.
func TestEndpointH2CancelsAtCapacity(t *testing.T) {
	t.Parallel()
	const streams = 3
	addr := rawServer(t, func(_ int, conn net.Conn) { (&unresetting{rawH2: newRawH2(conn), limit: streams}).serve(t) })
	e := endpoint(t, addr, WithHTTP2(), WithConnectTimeout(time.Minute), WithDialContext(
		func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slowReset{conn}, err
		}))
	connectNow(t.Context(), t, e)
	first := e.h2.current.Load()
	patient, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	var waiting, hasty sync.WaitGroup
	over := make(chan struct{})
	for range 4 {
		hasty.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					cancelSoon(patient, e)
				}
			}
		})
	}
	for range 12 {
		waiting.Go(func() { servedSome(patient, t, e, 10) })
	}
	waiting.Wait()
	close(over)
	hasty.Wait()
	require.NoError(t, e.Ready(patient))
	assert.NoError(t, get(patient, e, "/"))
	assert.Same(t, first, e.h2.current.Load(), "there was nothing wrong with the connection")
	assert.Eventually(t, func() bool { return first.active.Load() == 0 && first.cc.InFlight() == 0 },
		20*time.Second, time.Millisecond, "every stream has given its place back")
}

// unresetting is a server that answers after a moment, and does not mind how
// many streams are reset; that of net/http would end the connection.
type unresetting struct {
	*rawH2
	limit int

	mu   sync.Mutex
	open map[uint32]bool
}

func (s *unresetting) serve(t *testing.T) {
	var answers sync.WaitGroup
	defer answers.Wait()
	if s.preface() != nil {
		return
	}
	s.open = make(map[uint32]bool)
	s.settings(s.limit)
	for {
		kind, flags, stream, payload, err := s.next()
		if err != nil {
			return
		}
		s.mu.Lock()
		switch {
		case kind == frameHeaders:
			s.open[stream] = true
			if len(s.open) > s.limit {
				t.Errorf("%d streams are open", len(s.open))
			}
			answers.Go(func() { s.answer(stream) })
		case kind == frameRST:
			delete(s.open, stream)
		case (kind == framePing || kind == frameSettings) && flags&flagAck == 0:
			if kind == frameSettings {
				payload = nil
			}
			s.frame(kind, flagAck, 0, payload)
		}
		s.mu.Unlock()
	}
}

func (s *unresetting) answer(stream uint32) {
	yield(rand.IntN(10))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[stream] {
		delete(s.open, stream)
		s.respond(stream, "x")
	}
}

// servedSome calls until n requests were served, and knows no other answer
// than that and a refusal.
func servedSome(ctx context.Context, t *testing.T, svc Service, n int) {
	t.Helper()
	for n > 0 {
		switch err := get(ctx, svc, "/"); {
		case err == nil:
			n--
		case errors.Is(err, layer.ErrNotReady) && ctx.Err() == nil:
			runtime.Gosched()
		default:
			t.Errorf("a request that nobody cancelled: %v", err)
			return
		}
	}
}

// cancelSoon cancels a request about when its stream is opened, and returns
// when it did.
func cancelSoon(ctx context.Context, svc Service) {
	ctx, cancel := context.WithCancel(ctx)
	var canceller sync.WaitGroup
	canceller.Go(func() {
		yield(rand.IntN(10))
		cancel()
	})
	_ = get(ctx, svc, "/")
	canceller.Wait()
}

// A server that has gone silent does not get requests to wait there: those
// that were cancelled keep their places until it says something.
func TestEndpointH2SilentServerIsFull(t *testing.T) {
	const streams = 2
	ack, arrived := make(chan struct{}), make(chan struct{})
	e := endpoint(t, h2Server(t, streams, func(_ int, c *rawH2) {
		for range streams {
			c.request()
		}
		close(arrived)
		for {
			kind, flags, _, payload, err := c.next()
			if err != nil {
				return
			}
			if kind == framePing && flags&flagAck == 0 {
				<-ack
				c.frame(framePing, flagAck, 0, payload)
				return
			}
		}
	}), WithHTTP2())
	connectNow(t.Context(), t, e)
	c := e.h2.current.Load()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range streams {
		callers.Go(func() { assert.ErrorIs(t, get(ctx, e, "/"), context.Canceled) })
	}
	<-arrived
	cancel()
	callers.Wait()
	assert.EqualValues(t, 0, c.active.Load())
	assert.ErrorIs(t, layer.Poll[*http.Request, *http.Response](e), layer.ErrNotReady)
	short, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	assert.Equal(t, e.full, get(short, e, "/"))
	close(ack)
	assert.NoError(t, e.Ready(short))
}
