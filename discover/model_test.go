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

// Off the grid of the times at which the model looks.
const modelOverlap = 9950 * time.Millisecond

// place is an address of the model.
type place struct {
	want    resolve.Endpoint // what the resolver says
	told    resolve.Endpoint // what the consumer has there, if isTold
	isTold  bool
	outdate time.Time // since when that is not what the resolver says
}

// asked is a service that was asked for.
type asked struct {
	id     resolve.ID
	ctx    context.Context
	fake   *fake // nil as long as MakeService has not returned
	answer chan struct{}
	open   []*response
}

// model is what the changes should amount to, found by looking and not by
// following events.
type model struct {
	t      *rapid.T
	set    resolve.Set
	places map[netip.AddrPort]*place
	c      *consumer

	mu    sync.Mutex
	asked []*asked
	hang  bool // Make does not return now
	shut  bool // what is made is not ready
}

func (m *model) make(ctx context.Context, t discover.Target) service {
	a := &asked{id: t.Endpoint.ID, ctx: ctx}
	f := &fake{ctx: ctx, target: t}
	m.mu.Lock()
	defer m.mu.Unlock()
	f.shut.Store(m.shut)
	m.asked = append(m.asked, a)
	if m.hang {
		answer := make(chan struct{})
		a.answer = answer
		m.mu.Unlock()
		<-answer
		m.mu.Lock()
	}
	a.fake = f
	return f
}

// newest returns the last service that was asked for, for an ID.
func (m *model) newest(id resolve.ID) *asked {
	for _, a := range slices.Backward(m.asked) {
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
		if p.want.ID == p.told.ID {
			p.outdate = time.Now()
		}
		p.want = e
		now[e.Addr] = p
	}
	m.places = now
}

// settle brings the places up to date after things have happened.
func (m *model) settle() {
	for _, p := range m.places {
		a := m.newest(p.want.ID)
		isMade := a != nil && a.fake != nil
		switch {
		case p.isTold && p.told.ID == p.want.ID:
			p.told = p.want
		case !p.isTold && isMade,
			isMade && (!a.fake.shut.Load() || a.fake.closed.Load()),
			p.isTold && time.Since(p.outdate) >= modelOverlap:
			p.told, p.isTold = p.want, isMade
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
	require.Empty(t, m.c.twice, "one endpoint for each address")
	for _, a := range m.asked {
		p := m.places[a.id.Addr]
		wanted := p != nil && (p.want.ID == a.id || p.isTold && p.told.ID == a.id) && m.newest(a.id) == a
		require.Equal(t, wanted || len(a.open) > 0, a.ctx.Err() == nil, "%v", a.id)
	}
}

// Whatever comes in whatever order, the changes amount to the resolver's set,
// but for what is not made yet, and for what serves on until its successor is
// ready; every service that is in neither and has nothing open has ended, and
// no other.
func TestEndpointsAmountToTheSet(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, _ *source, _ *endpoints) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(ctx)
			defer synctest.Wait()
			defer cancel()
			src := newSource()
			m := &model{t: rt, places: make(map[netip.AddrPort]*place), c: &consumer{}}
			defer m.answer()
			go m.c.run(discover.Endpoints(ctx, src, "web", m.make, discover.WithHandoverTimeout[*response](modelOverlap)))
			rt.Repeat(map[string]func(*rapid.T){
				"update":      func(rt *rapid.T) { u := drawUpdate(rt); m.update(u); src.update(u) },
				"error":       func(*rapid.T) { src.fail(io.ErrUnexpectedEOF) },
				"time":        func(*rapid.T) { time.Sleep(3 * time.Second) },
				"call":        m.call,
				"close":       m.close,
				"new hang":    func(*rapid.T) { m.turn(&m.hang) },
				"new shut":    func(*rapid.T) { m.turn(&m.shut) },
				"all answer":  func(*rapid.T) { m.answer() },
				"one opens":   func(rt *rapid.T) { m.move(rt, (*fake).open) },
				"one is over": func(rt *rapid.T) { m.move(rt, (*fake).close) },
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

// answer lets all services be made that hang.
func (m *model) answer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.asked {
		if a.answer != nil {
			close(a.answer)
			a.answer = nil
		}
	}
}

func (m *model) move(rt *rapid.T, how func(*fake)) {
	if len(m.asked) == 0 {
		rt.Skip("nothing")
	}
	if a := rapid.SampledFrom(m.asked).Draw(rt, "service"); a.fake != nil {
		how(a.fake)
	}
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
	for _, a := range m.asked {
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
