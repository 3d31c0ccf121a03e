package discover_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// response has a body, so that it ends when that does.
type response struct{ Body io.ReadCloser }

type (
	service  = layer.Service[string, *response]
	endpoint = discover.Endpoint[string, *response]
	change   = discover.Change[string, *response]
)

func body(text string) *response { return &response{Body: io.NopCloser(strings.NewReader(text))} }

func addr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func at(i int) resolve.Endpoint { return resolve.Endpoint{ID: resolve.ID{Addr: addr(i)}} }

func labelled(i int, zone string) resolve.Endpoint {
	e := at(i)
	e.Labels = map[string]string{"zone": zone}
	return e
}

func replace(es ...resolve.Endpoint) resolve.Update {
	return resolve.Update{Kind: resolve.Replace, Endpoints: es}
}

func add(es ...resolve.Endpoint) resolve.Update {
	return resolve.Update{Kind: resolve.Add, Endpoints: es}
}

func remove(is ...int) resolve.Update {
	u := resolve.Update{Kind: resolve.Remove}
	for _, i := range is {
		u.Removed = append(u.Removed, addr(i))
	}
	return u
}

// item is one item of a resolver.
type item struct {
	update resolve.Update
	err    error
}

// source is a resolver that yields the items it receives. Closing items ends it.
type source struct {
	items    chan item
	targets  []string
	released chan struct{} // gets one when a Resolve is over
}

func newSource() *source { return &source{items: make(chan item), released: make(chan struct{}, 10)} }

func (s *source) update(u resolve.Update) { s.items <- item{update: u} }
func (s *source) fail(err error)          { s.items <- item{err: err} }

func (s *source) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		s.targets = append(s.targets, target)
		defer func() { s.released <- struct{}{} }()
		for {
			select {
			case i, ok := <-s.items:
				if !ok || !yield(i.update, i.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// endpoints makes fake services and records them.
type endpoints struct {
	mu    sync.Mutex
	made  []*fake
	block func(discover.Target) <-chan struct{} // MakeService waits for it, if it is not nil
	shut  atomic.Bool                           // new services are not ready
}

// fake responds with its own address.
type fake struct {
	ctx    context.Context
	target discover.Target
	serve  func(ctx context.Context, req string) (*response, error)
	ready  func(ctx context.Context) error
	calls  int
	mu     sync.Mutex

	shut  atomic.Bool // read by Ready only
	moved notify.Broadcast
}

func (e *endpoints) Make(ctx context.Context, t discover.Target) service {
	if e.block != nil {
		if wait := e.block(t); wait != nil {
			<-wait
		}
	}
	f := &fake{ctx: ctx, target: t}
	f.shut.Store(e.shut.Load())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made = append(e.made, f)
	return f
}

// of returns the services made for one address, the oldest first.
func (e *endpoints) of(i int) []*fake {
	e.mu.Lock()
	defer e.mu.Unlock()
	var fs []*fake
	for _, f := range e.made {
		if f.target.Endpoint.Addr == addr(i) {
			fs = append(fs, f)
		}
	}
	return fs
}

func (f *fake) Ready(ctx context.Context) error {
	if f.ready != nil {
		return f.ready(ctx)
	}
	if err := f.moved.Wait(ctx, func() bool { return !f.shut.Load() }); err != nil {
		return err
	}
	return nil
}

func (f *fake) Call(ctx context.Context, req string) (*response, error) {
	f.mu.Lock()
	f.calls++
	f.mu.Unlock()
	if f.serve != nil {
		return f.serve(ctx, req)
	}
	return body(f.target.Endpoint.Addr.String()), nil
}

func (f *fake) Describe() layer.Node {
	return layer.Node{Name: "fake", State: layer.State{{Key: "addr", Value: f.target.Endpoint.Addr}}}
}

// summary is a Change as a short text: "+1 ~2 -3 exists: error".
func summary(c change) string {
	var b strings.Builder
	for _, list := range []struct {
		sign string
		of   []*endpoint
	}{{"+", c.Added}, {"~", c.Changed}, {"-", c.Removed}} {
		for _, e := range list.of {
			a := e.Addr.Addr().As4()
			fmt.Fprintf(&b, "%s%d ", list.sign, int(a[2])<<8|int(a[3]))
		}
	}
	b.WriteString(c.State.String())
	if c.Err != nil {
		fmt.Fprintf(&b, ": %v", c.Err)
	}
	return b.String()
}

// consumer keeps the sum of all changes.
type consumer struct {
	mu      sync.Mutex
	changes []string
	last    change
	now     map[resolve.ID]*endpoint
	over    bool
	doubled []netip.AddrPort  // had two endpoints at the same time
	on      func(change) bool // called before the change is applied; false breaks
}

func (c *consumer) run(changes iter.Seq[change]) {
	c.now = make(map[resolve.ID]*endpoint)
	for ch := range changes {
		if c.on != nil && !c.on(ch) {
			break
		}
		c.mu.Lock()
		c.changes = append(c.changes, summary(ch))
		c.last = ch
		for _, e := range append(ch.Added, ch.Changed...) {
			c.now[e.ID] = e
		}
		for _, e := range ch.Removed {
			delete(c.now, e.ID)
		}
		addrs := make(map[netip.AddrPort]bool)
		for id := range c.now {
			if addrs[id.Addr] {
				c.doubled = append(c.doubled, id.Addr)
			}
			addrs[id.Addr] = true
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
}

// take returns the changes since the last call.
func (c *consumer) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := c.changes
	c.changes = nil
	return took
}

func (c *consumer) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// at returns the endpoint at an address, or nil.
func (c *consumer) at(i int) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.now {
		if id.Addr == addr(i) {
			return e
		}
	}
	return nil
}

func (c *consumer) endpoint(i int) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now[at(i).ID]
}
