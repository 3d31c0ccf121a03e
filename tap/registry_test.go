package tap

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/tap/match"
)

func TestWatcherLimit(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.All(), 2, false)
	svc := stand(reg, respond("x"))
	first, err := svc.Call(t.Context(), get("/0"))
	require.NoError(t, err)
	second, err := svc.Call(t.Context(), get("/1"))
	require.NoError(t, err)
	<-w.filled
	send(t, svc, get("/2"))
	require.Equal(t, "qrqr", kinds(events(w)), "the third request is not shown")
	require.False(t, isDone(w), "two are in flight")
	require.NoError(t, first.Body.Close())
	require.False(t, isDone(w), "one is in flight")
	require.NoError(t, second.Body.Close())
	require.True(t, isDone(w))
	require.Equal(t, "ee", kinds(events(w)), "their ends are delivered")
}

func TestWatcherFullIdle(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.PathPrefix("/"), 1, false)
	a := newAccess()
	svc := Layer[*call, *reply](reg, a)(respond("x"))
	send(t, svc, get("/"))
	looks := a.request()
	send(t, svc, get("/"))
	require.Equal(t, looks, a.request(), "not matched")
	require.NotNil(t, reg.active.Load())
	reg.refresh()
	require.Nil(t, reg.active.Load(), "not looked at")
	require.Equal(t, "qre", kinds(events(w)), "but not gone")
}

// More requests than the limit enter and leave concurrently. The watcher is done when the
// last of them has left, and not before.
func TestWatcherDoneAfterLastRequest(t *testing.T) {
	const together, rounds = 3, 5000
	for range rounds {
		w := &watcher{terms: terms{limit: 2}, filled: make(chan struct{}), done: make(chan struct{})}
		var ready atomic.Int32
		var all sync.WaitGroup
		for range together {
			all.Go(func() {
				for ready.Add(1); ready.Load() < together; {
					runtime.Gosched()
				}
				if _, ok := w.enter(); ok {
					w.sent()
					if isDone(w) {
						t.Error("done with a request inside")
					}
					w.leave()
				}
			})
		}
		all.Wait()
		if !isDone(w) {
			t.Fatal("never done")
		}
	}
}

func TestWatcherCapacity(t *testing.T) {
	reg := NewRegistry(WithCapacity(2, 0))
	c, err := compile(match.All())
	require.NoError(t, err)
	a := watch(t, reg, match.All(), 1, false)
	watchAll(t, reg)
	_, err = reg.watch(terms{match: c, limit: 1})
	require.EqualError(t, err, "tap: too many watchers: 2 of 2")
	send(t, stand(reg, respond("x")), get("/"))
	reg.refresh()
	_, err = reg.watch(terms{match: c, limit: 1})
	require.Error(t, err, "one that is full still has its buffer")
	reg.close(a)
	watchAll(t, reg)
}

// model is a watcher without atomics.
type model struct {
	limit, buffer int
	seen          int
	inside        map[*reply]uint64 // shown and not ended
	queue         []string
	dropped       uint64
}

func (m *model) offer(kind byte, stream uint64) bool {
	if len(m.queue) == m.buffer {
		m.dropped++
		return false
	}
	m.queue = append(m.queue, string(kind)+string(rune('0'+stream)))
	return true
}

func (m *model) call(rsp *reply) {
	if m.seen == m.limit {
		return
	}
	stream := uint64(m.seen)
	m.seen++
	if m.offer('q', stream) {
		m.inside[rsp] = stream
		m.offer('r', stream)
	}
}

func (m *model) end(rsp *reply) {
	if stream, ok := m.inside[rsp]; ok {
		m.offer('e', stream)
		delete(m.inside, rsp)
	}
}

// A watcher as a state machine: limit, ids, drops, and the end.
func TestWatcherModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			limit: rapid.IntRange(1, 8).Draw(rt, "limit"), buffer: rapid.IntRange(1, 7).Draw(rt, "buffer"),
			inside: map[*reply]uint64{},
		}
		reg := NewRegistry(WithCapacity(1, m.buffer))
		c, err := compile(match.Method("GET"))
		require.NoError(rt, err)
		w, err := reg.watch(terms{match: c, limit: uint64(m.limit)})
		require.NoError(rt, err)
		svc := stand(reg, respond("x"))
		var open []*reply
		call := func(method string) *reply {
			req := get("/")
			req.method = method
			rsp, err := svc.Call(context.Background(), req)
			require.NoError(rt, err)
			open = append(open, rsp)
			return rsp
		}
		rt.Repeat(map[string]func(*rapid.T){
			"matching request": func(*rapid.T) { m.call(call("GET")) },
			"other request":    func(*rapid.T) { call("PUT") },
			"end": func(rt *rapid.T) {
				if len(open) == 0 {
					rt.Skip("none in flight")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
				require.NoError(rt, open[i].Body.Close())
				m.end(open[i])
				open = append(open[:i], open[i+1:]...)
			},
			"read": func(*rapid.T) {
				if len(m.queue) == 0 {
					require.Empty(rt, w.buf.Load().events)
					return
				}
				e := <-w.buf.Load().events
				w.buf.Load().releaseEvent(e)
				require.Equal(rt, m.queue[0], kinds([]Event{e})+string(rune('0'+e.ID.Stream)))
				m.queue = m.queue[1:]
			},
			"refresh": func(*rapid.T) { reg.refresh() },
			"": func(*rapid.T) {
				require.Len(rt, w.buf.Load().events, len(m.queue))
				require.Equal(rt, m.dropped, w.dropped.Load())
				require.EqualValues(rt, len(m.inside), w.inFlight.Load())
				require.Equal(rt, m.seen == m.limit, w.full())
				require.Equal(rt, m.seen == m.limit && len(m.inside) == 0, isDone(w))
			},
		})
		reg.close(w)
		for _, rsp := range open {
			require.NoError(rt, rsp.Body.Close())
		}
	})
}

// Watchers are added and closed while requests run. Each stream is complete up to its end.
// No watcher sees more requests than its limit. Each watcher that is not closed becomes
// done.
func TestWatcherStress(t *testing.T) {
	const requesters, requests, observers, rounds = 8, 400, 4, 12
	reg := new(Registry)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		return &reply{status: 200, Body: io.NopCloser(strings.NewReader("x"))}, nil
	}))
	c, err := compile(match.All())
	require.NoError(t, err)
	over := make(chan struct{})
	var watching, requesting sync.WaitGroup
	for range requesters {
		requesting.Go(func() {
			for i := range requests {
				ctx, cancel := context.WithCancel(context.Background())
				rsp, err := svc.Call(ctx, get("/"))
				if err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					cancel() // ends the response from elsewhere, too
				}
				_, _ = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
				cancel()
			}
		})
	}
	for o := range observers {
		watching.Go(func() {
			for r := range rounds {
				w, err := reg.watch(terms{match: c, limit: uint64(20 + r), fields: o%2 == 0})
				if err != nil {
					t.Error(err)
					return
				}
				checkStreams(t, w, over, o == 3)
				reg.close(w)
			}
		})
	}
	requesting.Wait()
	close(over)
	watching.Wait()
	require.Nil(t, reg.active.Load())
	require.Empty(t, reg.watchers)
}

func checkStreams(t *testing.T, w *watcher, over <-chan struct{}, leaveEarly bool) {
	state := map[uint64]string{}
	check := func(e Event) {
		s := e.ID.Stream
		state[s] += kinds([]Event{e})
		if !strings.HasPrefix("qre", state[s]) && state[s] != "qe" {
			t.Errorf("stream %d: %s", s, state[s])
		}
		if s >= w.limit {
			t.Errorf("stream %d beyond the limit of %d", s, w.limit)
		}
	}
	unread := w.buf.Load()
	for {
		select {
		case e := <-unread.events:
			unread.releaseEvent(e)
			check(e)
			if leaveEarly {
				return
			}
		case <-w.done:
			_ = w.reader(false, func(e Event) error { check(e); return nil }).drain(t.Context())
			for s, got := range state {
				if w.dropped.Load() == 0 && !strings.HasSuffix(got, "e") {
					t.Errorf("stream %d has no end: %s", s, got)
				}
			}
			return
		case <-over:
			return
		}
	}
}
