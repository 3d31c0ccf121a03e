package balance_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// believed is the expected state of one endpoint.
type believed struct {
	*server
	state  string
	labels map[string]string
	picks  uint64
	open   []*response
}

// model is a balancer without concurrency.
type model struct {
	*pool
	present map[int]*believed
	removed []*believed
	state   resolve.State
	next    int
}

// reaches counts the requests sent to a server, rejected or not.
func (b *believed) reaches() int64 { return b.calls.Load() + b.refused.Load() }

// settle waits for background changes: endpoints that are ready again return.
func (m *model) settle() {
	synctest.Wait()
	for _, b := range m.present {
		switch {
		case b.state != "unready":
		case b.gone.Load():
			b.state = "closed"
		case b.isOpen.Load():
			b.state = "ready"
		}
	}
}

func (m *model) count(state string) (n int) {
	for _, b := range m.present {
		if b.state == state {
			n++
		}
	}
	return n
}

func (m *model) pick(rt *rapid.T) *believed {
	if len(m.present) == 0 {
		rt.Skip("no endpoint")
	}
	var ids []int
	for i := range m.next {
		if m.present[i] != nil {
			ids = append(ids, i)
		}
	}
	return m.present[rapid.SampledFrom(ids).Draw(rt, "endpoint")]
}

func (m *model) update(rt *rapid.T) {
	c := change{State: m.state}
	for i := range m.next {
		b := m.present[i]
		if b == nil {
			continue
		}
		switch rapid.SampledFrom([]string{"keep", "keep", "label", "remove"}).Draw(rt, fmt.Sprint(i)) {
		case "label":
			b.labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "zone")}
			c.Changed = append(c.Changed, b.labelled(b.labels))
		case "remove":
			c.Removed = append(c.Removed, b.endpoint())
			m.removed = append(m.removed, b)
			delete(m.present, i)
		}
	}
	for range rapid.IntRange(0, 3).Draw(rt, "added") {
		b := &believed{server: newServer(m.next), state: "ready"}
		switch rapid.SampledFrom([]string{"open", "open", "shut", "closed"}).Draw(rt, "is") {
		case "shut":
			b.state = "unready"
			b.server.open(false)
		case "closed":
			b.state = "closed"
			b.close()
		}
		c.Added = append(c.Added, b.endpoint())
		m.present[m.next] = b
		m.next++
	}
	if m.state = resolve.StateExists; len(m.present) == 0 {
		m.state = rapid.SampledFrom([]resolve.State{resolve.StateEmpty, resolve.StateDoesNotExist}).Draw(rt, "state")
	}
	c.State = m.state
	m.apply(c)
}

// call sends one request and checks the balancer against the model.
func (m *model) call(ctx context.Context, rt *rapid.T) {
	calls, refused := make(map[int]int64), make(map[int]int64)
	for i, b := range m.present {
		calls[i], refused[i] = b.calls.Load(), b.refused.Load()
	}
	rsp, err := m.Call(ctx, "")
	var refusals, served int
	for i, b := range m.present {
		took, refused := b.calls.Load()-calls[i], b.refused.Load()-refused[i]
		if took+refused > 0 {
			require.Equal(rt, "ready", b.state, "only the ready ones are tried")
			require.EqualValues(rt, 1, took+refused, "once")
		}
		switch {
		case took > 0:
			served++
			b.picks++
			b.open = append(b.open, rsp)
		case refused > 0 && b.gone.Load():
			refusals++
			b.state = "closed"
		case refused > 0:
			refusals++
			b.state = "unready"
		}
	}
	require.LessOrEqual(rt, refusals, 5)
	if err == nil {
		require.Equal(rt, 1, served)
		return
	}
	require.Zero(rt, served)
	require.ErrorIs(rt, err, layer.ErrNotReady)
	require.NotErrorIs(rt, err, layer.ErrClosed)
	require.True(rt, refusals == 5 || m.count("ready") == 0, "it gave up too early: %v", err)
}

func (m *model) check(rt *rapid.T) {
	m.settle()
	d := m.Describe()
	require.Equal(rt, m.state, d.State.Get("state"))
	require.Equal(rt, m.count("ready"), d.State.Get("ready"))
	require.Len(rt, d.Children, len(m.present))
	for _, b := range m.present {
		s := m.of(b.server)
		require.NotNil(rt, s)
		require.Equal(rt, b.state, s.Get("state"))
		require.Equal(rt, b.picks, s.Get("picks"), "statistics survive updates")
		require.EqualValues(rt, len(b.open), s.Get("in_flight"))
		if b.labels == nil {
			require.Nil(rt, s.Get("labels"))
		} else {
			require.Equal(rt, b.labels, s.Get("labels"))
		}
	}
	m.poll(rt)
}

// poll calls Ready of the balancer, which polls an endpoint and removes it from the ready
// set if it is not ready.
func (m *model) poll(rt *rapid.T) {
	var open, stale int
	for _, b := range m.present {
		switch {
		case b.state != "ready":
		case b.isOpen.Load() && !b.gone.Load():
			open++
		default:
			stale++
		}
	}
	err := layer.Poll(m.balancer)
	for _, b := range m.present {
		now := m.of(b.server).Get("state").(string)
		if now == b.state {
			continue
		}
		require.Equal(rt, "ready", b.state)
		require.True(rt, b.gone.Load() || !b.isOpen.Load())
		b.state = now
	}
	switch {
	case open > 0:
		require.NoError(rt, err)
	case stale < 5:
		require.ErrorIs(rt, err, layer.ErrNotReady)
		require.Zero(rt, m.count("ready"))
	}
}

// After any sequence of changes and requests the balancer has the states of the model.
func TestBalancerModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer cancel()
			m := &model{pool: newPoolIn(ctx), present: make(map[int]*believed)}
			reached := make(map[*believed]int64)
			rt.Repeat(map[string]func(*rapid.T){
				"update": m.update,
				"error":  func(*rapid.T) { m.apply(change{State: m.state, Err: io.ErrUnexpectedEOF}) },
				"call":   func(rt *rapid.T) { m.call(ctx, rt) },
				"calls": func(rt *rapid.T) {
					for range 10 {
						m.call(ctx, rt)
						m.settle()
					}
				},
				"read": func(rt *rapid.T) {
					if b := m.pick(rt); len(b.open) > 0 {
						require.NoError(rt, b.open[0].Body.Close())
						b.open = b.open[1:]
					}
				},
				"open":  func(rt *rapid.T) { m.pick(rt).server.open(true) },
				"shut":  func(rt *rapid.T) { m.pick(rt).server.open(false) },
				"close": func(rt *rapid.T) { m.pick(rt).close() },
				"": func(rt *rapid.T) {
					m.check(rt)
					for _, b := range m.removed {
						if before, known := reached[b]; known {
							require.Equal(rt, before, b.reaches(), "nothing is sent to removed endpoints")
						}
						reached[b] = b.reaches()
					}
				},
			})
		})
	})
}
