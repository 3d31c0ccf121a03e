package discover_test

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/resolve"
)

// modelHandover is not a multiple of the times at which the model looks.
const modelHandover = 9950 * time.Millisecond

// place is an address of the model.
type place struct {
	want    resolve.Endpoint // of the resolver
	told    resolve.Endpoint // of the consumer, if isTold
	isTold  bool
	changed time.Time // when the resolver's ID changed last
}

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
	t      *rapid.T
	set    resolve.Set
	places map[netip.AddrPort]*place
	c      *consumer

	mu   sync.Mutex
	made []*made
	shut bool // new services are not ready
}

func (m *model) make(ctx context.Context, t discover.Target) service {
	f := &fake{ctx: ctx, target: t}
	m.mu.Lock()
	defer m.mu.Unlock()
	f.shut.Store(m.shut)
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

func (m *model) update(u resolve.Update) {
	m.set.Apply(u)
	now := make(map[netip.AddrPort]*place)
	for _, e := range m.set.Endpoints() {
		p := m.places[e.Addr]
		if p == nil {
			p = &place{}
		}
		if p.want.ID != e.ID {
			p.changed = time.Now()
		}
		p.want = e
		now[e.Addr] = p
	}
	m.places = now
}

// settle updates the places after events.
func (m *model) settle() {
	for _, p := range m.places {
		a := m.newest(p.want.ID)
		switch {
		case !p.isTold, p.told.ID == p.want.ID,
			!a.fake.shut.Load(), a.fake.closed.Load(),
			time.Since(p.changed) >= modelHandover:
			p.told, p.isTold = p.want, true
		}
	}
}

func (m *model) check() {
	t := m.t
	m.c.mu.Lock() // time alone may change what it has
	defer m.c.mu.Unlock()
	require.Equal(t, m.set.State(), m.c.last.State)
	told := make(map[resolve.ID]bool)
	for _, p := range m.places {
		if p.isTold {
			told[p.told.ID] = true
			e := m.c.now[p.told.ID]
			require.NotNil(t, e, "%v", p.told)
			require.True(t, p.told.Equal(e.Endpoint), "%v", p.told)
		}
	}
	require.Len(t, m.c.now, len(told))
	require.Empty(t, m.c.doubled, "one endpoint for each address")
	for _, a := range m.made {
		p := m.places[a.id.Addr]
		wanted := p != nil && (p.want.ID == a.id || p.isTold && p.told.ID == a.id) && m.newest(a.id) == a
		require.Equal(t, wanted || len(a.open) > 0, a.ctx.Err() == nil, "%v", a.id)
	}
}

// After random events the changes add up to the resolver's set, except for endpoints
// that serve until their successor is ready. A service outside of both has ended exactly
// if none of its responses is open.
func TestEndpointsModel(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, _ *source, _ *endpoints) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(ctx)
			defer synctest.Wait()
			defer cancel()
			src := newSource()
			m := &model{t: rt, places: make(map[netip.AddrPort]*place), c: &consumer{}}
			go m.c.run(discover.Endpoints(ctx, src, "web", m.make, discover.WithHandoverTimeout[*response](modelHandover)))
			rt.Repeat(map[string]func(*rapid.T){
				"update":     func(rt *rapid.T) { u := drawUpdate(rt); m.update(u); src.update(u) },
				"error":      func(*rapid.T) { src.fail(io.ErrUnexpectedEOF) },
				"time":       func(*rapid.T) { time.Sleep(3 * time.Second) },
				"call":       m.call,
				"close":      m.close,
				"new shut":   func(*rapid.T) { m.turn(&m.shut) },
				"one opens":  func(rt *rapid.T) { m.move(rt, (*fake).open) },
				"one closes": func(rt *rapid.T) { m.move(rt, (*fake).close) },
				"": func(*rapid.T) {
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					m.settle()
					m.check()
				},
			})
		})
	})
}

func (m *model) turn(what *bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*what = !*what
}

func (m *model) move(rt *rapid.T, how func(*fake)) {
	if len(m.made) == 0 {
		rt.Skip("nothing")
	}
	a := rapid.SampledFrom(m.made).Draw(rt, "service")
	how(a.fake)
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
