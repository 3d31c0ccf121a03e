package balance_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// response has a body, so that it ends with that.
type response struct{ Body io.ReadCloser }

type (
	balancer = balance.Balancer[string, *response]
	endpoint = discover.Endpoint[string, *response]
	change   = discover.Change[string, *response]
	option   = balance.Option[*response]
)

// server is the service of an endpoint, with a state and a latency.
type server struct {
	addr    netip.AddrPort
	serve   func(ctx context.Context, req string) (*response, error) // nil: answers at once
	isOpen  atomic.Bool
	gone    atomic.Bool
	moved   notify.Broadcast
	calls   atomic.Int64
	refused atomic.Int64
	asked   atomic.Int64 // how often Ready was called
	waiting atomic.Int64 // how many are in it
	lies    atomic.Bool  // Ready returns nil and Call rejects
	fault   error        // why it is not open; nil means that it is busy
}

func newServer(i int) *server {
	s := &server{addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)}
	s.isOpen.Store(true)
	return s
}

func (s *server) open(yes bool) { s.isOpen.Store(yes); s.moved.Wake() }
func (s *server) close()        { s.gone.Store(true); s.moved.Wake() }

func (s *server) Ready(ctx context.Context) error {
	s.asked.Add(1)
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	if err := s.moved.Wait(ctx, func() bool { return s.isOpen.Load() || s.gone.Load() }); err != nil {
		return err
	}
	if s.gone.Load() {
		return s.refusal(layer.ErrClosed)
	}
	return nil
}

func (s *server) refusal(kind error) error {
	return &layer.Error{Layer: "server", Kind: kind, Reason: "shut", Err: s.fault}
}

func (s *server) Call(ctx context.Context, req string) (*response, error) {
	switch {
	case s.gone.Load():
		s.refused.Add(1)
		return nil, s.refusal(layer.ErrClosed)
	case !s.isOpen.Load() || s.lies.Load():
		s.refused.Add(1)
		return nil, s.refusal(layer.ErrNotReady)
	}
	s.calls.Add(1)
	if s.serve != nil {
		return s.serve(ctx, req)
	}
	return body(s.addr.String()), nil
}

func body(text string) *response { return &response{io.NopCloser(strings.NewReader(text))} }

func (s *server) endpoint() *endpoint { return s.labelled(nil) }

func (s *server) labelled(labels map[string]string) *endpoint {
	return &endpoint{Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: s.addr}, Labels: labels}, Target: "web", Service: s}
}

// pool is a balancer with its changes.
type pool struct {
	*balancer
	feed   chan change
	taken  chan struct{}
	finish func() // ends the balancer's context
}

// newPool returns a balancer within a bubble.
func newPool(t *testing.T, opts ...option) *pool {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	p := newPoolIn(ctx, opts...)
	p.finish = func() { cancel(errOver); synctest.Wait() }
	t.Cleanup(p.finish)
	return p
}

func newPoolIn(ctx context.Context, opts ...option) *pool {
	p := &pool{feed: make(chan change), taken: make(chan struct{})}
	p.balancer = balance.New(ctx, balance.Config{Target: "web"}, p.changes(ctx), opts...)
	return p
}

var errOver = fmt.Errorf("over")

func (p *pool) changes(ctx context.Context) iter.Seq[change] {
	return func(yield func(change) bool) {
		for {
			select {
			case c, ok := <-p.feed:
				if !ok || !yield(c) {
					return
				}
				p.taken <- struct{}{}
			case <-ctx.Done():
				return
			}
		}
	}
}

// apply returns after the balancer has applied the change.
func (p *pool) apply(c change) {
	p.feed <- c
	<-p.taken
}

func (p *pool) add(servers ...*server) {
	c := change{State: resolve.StateExists}
	for _, s := range servers {
		c.Added = append(c.Added, s.endpoint())
	}
	p.apply(c)
	synctest.Wait()
}

func (p *pool) remove(servers ...*server) {
	c := change{State: resolve.StateExists}
	for _, s := range servers {
		c.Removed = append(c.Removed, s.endpoint())
	}
	p.apply(c)
}

// send makes one request and reads its response to the end.
func (p *pool) send(ctx context.Context) error {
	rsp, err := p.Call(ctx, "")
	if err == nil {
		_, _ = io.Copy(io.Discard, rsp.Body)
		_ = rsp.Body.Close()
	}
	return err
}

// of returns the state of a server in the balancer.
func (p *pool) of(s *server) layer.State {
	for _, child := range p.Describe().Children {
		if child.State.Get("addr") == s.addr {
			return child.State
		}
	}
	return nil
}

// state returns the state of the endpoint of s.
func (p *pool) state(s *server) balance.EndpointState {
	for _, e := range p.Snapshot() {
		if e.ID.Addr == s.addr {
			return e
		}
	}
	return balance.EndpointState{}
}

func (p *pool) ewma(s *server) time.Duration { return p.of(s).Get("ewma").(time.Duration) }

// bubble runs f in a synctest bubble. All goroutines of f end before it does.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func servers(n int) []*server {
	ss := make([]*server, n)
	for i := range ss {
		ss[i] = newServer(i + 1)
	}
	return ss
}

// after makes a server respond after d.
func (s *server) after(d func() time.Duration) *server {
	s.serve = func(ctx context.Context, _ string) (*response, error) {
		t := time.NewTimer(d())
		defer t.Stop()
		select {
		case <-t.C:
			return body(s.addr.String()), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s
}

// hang makes a server never respond.
func (s *server) hang() *server {
	s.serve = func(ctx context.Context, _ string) (*response, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s
}

// load sends n requests at a rate and returns the share of each server. A request does not wait
// for others. Goroutines are used again, because the growth of their stacks takes long.
func (p *pool) load(t *testing.T, n int, every time.Duration, ss []*server, ctx func(i int) (context.Context, context.CancelFunc)) []float64 {
	t.Helper()
	before := make([]int64, len(ss))
	for i, s := range ss {
		before[i] = s.calls.Load()
	}
	send := func(i int) {
		ctx, cancel := ctx(i)
		defer cancel()
		_ = p.send(ctx)
	}
	var all sync.WaitGroup
	next := make(chan int)
	for i := range n {
		select {
		case next <- i:
		default: // all goroutines wait for responses
			all.Go(func() {
				send(i)
				for i := range next {
					send(i)
				}
			})
		}
		time.Sleep(every)
	}
	close(next)
	all.Wait()
	shares := make([]float64, len(ss))
	for i, s := range ss {
		shares[i] = float64(s.calls.Load()-before[i]) / float64(n)
	}
	require.NotEmpty(t, shares)
	return shares
}

// allowing returns contexts with that timeout.
func allowing(d time.Duration) func(int) (context.Context, context.CancelFunc) {
	return func(int) (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), d) }
}

func patient(int) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
