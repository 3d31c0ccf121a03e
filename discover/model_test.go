package discover_test

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/resolve"
)

// made is a service that was made.
type made struct {
	id   resolve.ID
	ctx  context.Context
	fake *fake
	open []*response
}

// model has the expected sum of all changes. It derives them from the states of the
// services and not from events.
type model struct {
	t   *rapid.T
	set resolve.Set
	c   *consumer

	mu   sync.Mutex
	made []*made
}

func (m *model) make(ctx context.Context, t discover.Target) service {
	f := &fake{ctx: ctx, target: t}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made = append(m.made, &made{id: t.Endpoint.ID, ctx: ctx, fake: f})
	return f
}

// newest returns the last service that was made for an ID.
func (m *model) newest(id resolve.ID) *made {
	for _, a := range slices.Backward(m.made) {
		if a.id == id {
			return a
		}
	}
	return nil
}

func (m *model) check() {
	t := m.t
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	require.Equal(t, m.set.State(), m.c.last.State)
	endpoints := m.set.Endpoints()
	require.Len(t, m.c.now, len(endpoints))
	wanted := make(map[resolve.ID]bool)
	for _, want := range endpoints {
		wanted[want.ID] = true
		e := m.c.now[want.ID]
		require.NotNil(t, e, "%v", want)
		require.True(t, want.Equal(e.Endpoint), "%v", want)
	}
	require.Empty(t, m.c.doubled, "one endpoint for each address")
	for _, a := range m.made {
		current := wanted[a.id] && m.newest(a.id) == a
		require.Equal(t, current || len(a.open) > 0, a.ctx.Err() == nil, "%v", a.id)
	}
}

// After random events the changes add up to the resolver's set. A service that was
// removed or replaced has ended exactly if none of its responses is open.
func TestEndpointsModel(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, _ *source, _ *endpoints) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(ctx)
			defer synctest.Wait()
			defer cancel()
			src := newSource()
			m := &model{t: rt, c: &consumer{}}
			go m.c.run(discover.Endpoints(ctx, src, "web", m.make))
			rt.Repeat(map[string]func(*rapid.T){
				"update": func(rt *rapid.T) { u := drawUpdate(rt); m.set.Apply(u); src.update(u) },
				"error":  func(*rapid.T) { src.fail(io.ErrUnexpectedEOF) },
				"call":   m.call,
				"close":  m.close,
				"": func(*rapid.T) {
					synctest.Wait()
					m.check()
				},
			})
		})
	})
}

func (m *model) call(rt *rapid.T) {
	e := m.c.at(rapid.IntRange(0, 4).Draw(rt, "endpoint"))
	if e == nil {
		rt.Skip("not there")
	}
	rsp, err := e.Service.Call(context.Background(), "")
	require.NoError(rt, err)
	a := m.newest(e.ID)
	a.open = append(a.open, rsp)
}

func (m *model) close(rt *rapid.T) {
	for _, a := range m.made {
		if len(a.open) > 0 {
			require.NoError(rt, a.open[0].Body.Close())
			a.open = a.open[1:]
			return
		}
	}
}

func drawUpdate(rt *rapid.T) resolve.Update {
	u := resolve.Update{Kind: rapid.SampledFrom([]resolve.Kind{
		resolve.Replace, resolve.Replace, resolve.Add, resolve.Add, resolve.Add, resolve.Remove, resolve.Empty, resolve.DoesNotExist,
	}).Draw(rt, "kind")}
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, 4), 0, 5).Draw(rt, "endpoints") {
		e := labelled(i, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "zone"))
		e.ServerName = rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, "server name")
		u.Endpoints = append(u.Endpoints, e)
		u.Removed = append(u.Removed, e.Addr)
	}
	return u
}
