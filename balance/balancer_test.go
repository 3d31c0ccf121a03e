package balance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func TestRejectionReasons(t *testing.T) {
	lost := errors.New("connection lost")
	const exists = resolve.StateExists
	for _, tt := range []struct {
		name    string
		changes func(shut, closed *endpoint) []change
		want    string
		is      []error
		isNot   []error
	}{
		{
			"pending", func(_, _ *endpoint) []change { return nil },
			"balance web: not ready: not resolved yet", nil, []error{discover.ErrNoEndpoints, layer.ErrClosed},
		},
		{
			"no answer", func(_, _ *endpoint) []change { return []change{{Err: lost}} },
			"balance web: not ready: not resolved yet: connection lost", []error{lost}, []error{layer.ErrClosed},
		},
		{
			"empty", func(_, _ *endpoint) []change { return []change{{State: resolve.StateEmpty}} },
			"balance web: not ready: the target has no endpoints",
			[]error{discover.ErrNoEndpoints}, []error{discover.ErrDoesNotExist, layer.ErrClosed},
		},
		{
			"does not exist", func(_, _ *endpoint) []change { return []change{{State: resolve.StateDoesNotExist}} },
			"balance web: not ready: the target does not exist",
			[]error{discover.ErrDoesNotExist}, []error{discover.ErrNoEndpoints, layer.ErrClosed},
		},
		{
			"unready", func(shut, _ *endpoint) []change { return []change{{State: exists, Added: []*endpoint{shut}}} },
			"balance web 10.0.0.1:80: not ready: 0 of 1 endpoints ready: not ready",
			nil, []error{layer.ErrClosed, discover.ErrNoEndpoints},
		},
		{
			"all closed", func(_, closed *endpoint) []change { return []change{{State: exists, Added: []*endpoint{closed}}} },
			"balance web 10.0.0.2:80: not ready: 0 of 1 endpoints ready: server: closed: shut", nil, []error{layer.ErrClosed},
		},
		{
			"emptied", func(shut, _ *endpoint) []change {
				return []change{{State: exists, Added: []*endpoint{shut}}, {State: resolve.StateEmpty, Removed: []*endpoint{shut}}}
			},
			"balance web: not ready: the target has no endpoints", nil, nil,
		},
		{
			"unresolvable", func(shut, _ *endpoint) []change {
				return []change{{State: exists, Added: []*endpoint{shut}}, {Err: fmt.Errorf("web: %w", resolve.ErrUnresolvable)}}
			},
			"balance web: closed: web: not a name that this resolver resolves",
			[]error{layer.ErrClosed, resolve.ErrUnresolvable}, nil,
		},
		{
			"the unready endpoint was removed", func(shut, closed *endpoint) []change {
				return []change{
					{State: exists, Added: []*endpoint{shut, closed}},
					{State: exists, Removed: []*endpoint{closed}},
				}
			},
			"balance web 10.0.0.1:80: not ready: 0 of 1 endpoints ready: not ready", nil, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, shut, closed := newPool(t), newServer(1), newServer(2)
				shut.open(false)
				closed.close()
				for _, c := range tt.changes(shut.endpoint(), closed.endpoint()) {
					p.apply(c)
				}
				_, err := p.Call(t.Context(), "")
				require.EqualError(t, err, tt.want)
				require.ErrorIs(t, err, layer.ErrNotReady)
				for _, target := range tt.is {
					require.ErrorIs(t, err, target)
				}
				for _, target := range tt.isNot {
					require.NotErrorIs(t, err, target)
				}
				poll := layer.Poll(p.balancer)
				require.Equal(t, errors.Is(err, layer.ErrClosed), errors.Is(poll, layer.ErrClosed))
				require.ErrorIs(t, poll, layer.ErrNotReady)
			})
		})
	}
}

func TestCallCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		left := errors.New("left")
		ctx, leave := context.WithCancelCause(t.Context())
		leave(left)
		err := p.send(ctx)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, left)
		require.EqualError(t, err, "balance web: not ready: canceled by the caller: left")
		require.Zero(t, ss[0].calls.Load())
	})
}

func TestCallResults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		text, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, "10.0.0.1:80", string(text))

		broken := errors.New("broken")
		partial := &response{}
		type key struct{}
		ss[0].serve = func(ctx context.Context, req string) (*response, error) {
			assert.Equal(t, "req", req)
			assert.Equal(t, 1, ctx.Value(key{}))
			return partial, broken
		}
		rsp, err = p.Call(context.WithValue(t.Context(), key{}, 1), "req")
		require.Same(t, broken, err)
		require.Same(t, partial, rsp)
		require.Equal(t, "ready", p.of(ss[0]).Get("state"), "an error is not a refusal")
	})
}

func TestRejectionTriesOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		p.add(ss...)
		for _, s := range ss[:3] {
			s.open(false) // the balancer does not know yet
		}
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		require.EqualValues(t, 20, ss[3].calls.Load())
		synctest.Wait()
		for _, s := range ss[:3] {
			state := p.of(s)
			if state.Get("state") == "ready" {
				continue // two choices may not have met it
			}
			require.Equal(t, "unready", state.Get("state"))
			require.Equal(t, "server: not ready: shut", state.Get("reason"))
			require.EqualValues(t, 0, state.Get("picks"), "it did not take a request")
			require.EqualValues(t, 0, state.Get("in_flight"))
			require.Equal(t, false, state.Get("known"), "a rejection has no latency")
			s.open(true)
			synctest.Wait()
			require.Equal(t, "ready", p.of(s).Get("state"))
			require.Nil(t, p.of(s).Get("reason"))
		}
	})
}

func TestRejectionsLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(8)
		p.add(ss...)
		for _, s := range ss {
			s.open(false)
		}
		err := p.send(t.Context())
		require.EqualError(t, err, "balance web: not ready: rejected by 5 endpoints: server: not ready: shut")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualValues(t, 3, p.Describe().State.Get("ready"))
		err = p.send(t.Context())
		require.ErrorContains(t, err, "not ready: 0 of 8 endpoints ready: server: not ready: shut")
		for _, s := range ss {
			require.EqualValues(t, 0, p.of(s).Get("in_flight"))
		}
	})
}

// Ready confirms endpoints until one of them is ready, or none is left.
func TestReadyOfManyUnready(t *testing.T) {
	for _, n := range []int{1, 5, 30} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t), servers(n+1)
			p.add(ss...)
			for _, s := range ss[:n] {
				s.open(false)
			}
			require.NoError(t, layer.Poll(p.balancer))
			ss[n].open(false)
			require.ErrorIs(t, layer.Poll(p.balancer), layer.ErrNotReady)
		})
	}
}

// Several requests may be rejected by one endpoint at the same time.
func TestRejectionsConcurrent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		var moment sync.WaitGroup
		moment.Add(1)
		for _, s := range ss {
			s.serve = func(context.Context, string) (*response, error) {
				moment.Wait()
				return nil, s.refusal(layer.ErrNotReady)
			}
		}
		p.add(ss...)
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() { assert.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady) })
		}
		synctest.Wait()
		for _, s := range ss {
			require.GreaterOrEqual(t, p.of(s).Get("in_flight"), uint64(2))
			s.open(false)
		}
		moment.Done()
		all.Wait()
		require.Equal(t, 0, p.Describe().State.Get("ready"))
		for _, s := range ss {
			s.serve = nil
			s.open(true)
		}
		synctest.Wait()
		require.Equal(t, 3, p.Describe().State.Get("ready"))
		for range 100 {
			require.NoError(t, p.send(t.Context()))
		}
		for _, s := range ss {
			require.EqualValues(t, 0, p.of(s).Get("in_flight"))
		}
	})
}

// A request that is canceled while an endpoint rejects it gets that rejection.
func TestRejectionAfterCancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		p.add(ss...)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		refusal := &layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Reason: "canceled by the caller"}
		for _, s := range ss {
			s.serve = func(context.Context, string) (*response, error) { leave(); return nil, refusal }
		}
		require.ErrorIs(t, p.send(ctx), error(refusal))
		require.EqualValues(t, 2, p.Describe().State.Get("ready"))
		require.EqualValues(t, 1, ss[0].calls.Load()+ss[1].calls.Load())
	})
}

// An endpoint that is closed or in fail-fast does not make the balancer so, even if the
// request was canceled before another endpoint was tried.
func TestRejectionKindAfterCancel(t *testing.T) {
	for _, kind := range []error{layer.ErrClosed, layer.ErrFailFast} {
		t.Run(kind.Error(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t), servers(2)
				p.add(ss...)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				for _, s := range ss {
					s.serve = func(context.Context, string) (*response, error) { leave(); return nil, s.refusal(kind) }
				}
				err := p.send(ctx)
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.NotErrorIs(t, err, kind)
				var rejection *layer.Error
				require.ErrorAs(t, err, &rejection)
				require.Equal(t, "balance", rejection.Layer)
				require.ErrorContains(t, err, "canceled by the caller")
				require.ErrorContains(t, err, "shut")
				require.EqualValues(t, 1, ss[0].calls.Load()+ss[1].calls.Load())
			})
		})
	}
}

func TestRejectionsDespiteReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].lies.Store(true)
		p.add(ss...)
		for range 100 {
			require.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady)
			synctest.Wait()
		}
		ss[0].lies.Store(false)
		require.NoError(t, p.send(t.Context()))
	})
}

func TestEndpointCloses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		byReady, byCall, well := ss[0], ss[1], ss[2]
		byReady.open(false)
		p.add(ss...)
		byReady.close()
		byCall.close()
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		synctest.Wait()
		asked := byReady.asked.Load()
		for _, s := range []*server{byReady, byCall} {
			require.Equal(t, "closed", p.of(s).Get("state"))
			require.Equal(t, "server: closed: shut", p.of(s).Get("reason"))
			s.gone.Store(false)
			s.open(true)
		}
		time.Sleep(time.Hour)
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		require.EqualValues(t, 40, well.calls.Load(), "permanently")
		require.Equal(t, asked, byReady.asked.Load())

		p.remove(byReady, byCall)
		require.Nil(t, p.of(byCall))
		p.add(byCall)
		require.Equal(t, "ready", p.of(byCall).Get("state"), "it came back as a new one")
	})
}

// The error of an endpoint is the cause, but the balancer is not closed because an
// endpoint is.
func TestRejectionCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		special := errors.New("special")
		for _, kind := range []error{layer.ErrClosed, layer.ErrFailFast} {
			p, ss := newPool(t), servers(5)
			p.add(ss...)
			for _, s := range ss {
				s.serve = func(context.Context, string) (*response, error) {
					return nil, &layer.Error{Layer: "inner", Kind: kind, Err: special}
				}
			}
			err := p.send(t.Context()) // rejected by 5 endpoints
			require.ErrorContains(t, err, "rejected by 5 endpoints: inner: "+kind.Error())
			require.NotErrorIs(t, err, kind)
			require.ErrorIs(t, err, special)
			for _, s := range ss {
				s.open(false)
			}
			for p.Describe().State.Get("ready") != 0 {
				_ = p.send(t.Context())
				synctest.Wait()
			}
			err = p.send(t.Context())
			require.ErrorContains(t, err, "0 of 5 endpoints ready")
			require.NotErrorIs(t, err, kind)
			var inner *layer.Error
			require.ErrorAs(t, err, &inner)
			p.finish()
		}
	})
}

func TestNewEndpointReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{ss[0].endpoint()}})
		require.NoError(t, p.send(t.Context()), "without waiting for anything")
	})
}

func TestNewEndpointUnready(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].open(false) // its Ready connects it
		p.add(ss...)
		require.Equal(t, "unready", p.of(ss[0]).Get("state"))
		require.EqualValues(t, 2, ss[0].asked.Load(), "a poll, and one that waits, without any request")
		ss[0].open(true)
		synctest.Wait()
		require.NoError(t, p.send(t.Context()))
	})
}

func TestRemovedEndpointWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		for _, s := range ss {
			s.open(false)
		}
		p.add(ss...)
		require.EqualValues(t, 1, ss[0].waiting.Load())
		p.remove(ss[0])
		synctest.Wait()
		require.EqualValues(t, 0, ss[0].waiting.Load())
		require.EqualValues(t, 1, ss[1].waiting.Load())
		ss[0].open(true)
		synctest.Wait()
		require.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady)
	})
}

// An endpoint that is added again keeps its node.
func TestSameID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		_, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		again := newServer(1)
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{again.labelled(map[string]string{"zone": "b"})}})
		state := p.of(ss[0])
		require.EqualValues(t, 1, state.Get("picks"))
		require.EqualValues(t, 1, state.Get("in_flight"))
		require.Equal(t, map[string]string{"zone": "b"}, state.Get("labels"))
		require.NoError(t, p.send(t.Context()))
		require.EqualValues(t, 2, ss[0].calls.Load())
	})
}

func TestReadyWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		for _, s := range ss {
			s.open(false)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Ready(ctx), context.DeadlineExceeded)

		done := make(chan error, 10)
		for range 10 {
			go func() { done <- p.Ready(t.Context()) }()
		}
		p.add(ss...)
		require.Empty(t, done)
		ss[1].open(true)
		for range 10 {
			require.NoError(t, <-done)
		}
		require.NoError(t, layer.Poll(p.balancer))
		p.remove(ss[1])
		require.ErrorIs(t, layer.Poll(p.balancer), layer.ErrNotReady)
	})
}

// The ready set only changes by rejections. Ready polls an endpoint.
func TestReadyPolls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		p.add(ss...)
		for _, s := range ss {
			s.open(false)
		}
		require.ErrorIs(t, layer.Poll(p.balancer), layer.ErrNotReady)
		require.Equal(t, 0, p.Describe().State.Get("ready"))
		done := make(chan error)
		go func() { done <- p.Ready(t.Context()) }()
		synctest.Wait()
		require.Empty(t, done)
		ss[1].open(true)
		require.NoError(t, <-done)
	})
}

// surly is never ready when polled, but its Ready returns nil.
type surly struct{ *server }

func (s surly) Ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func TestReadyContradictsPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t)
		e := newServer(1).endpoint()
		e.Service = surly{newServer(1)}
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{e}})
		synctest.Wait()
		require.NoError(t, p.Ready(t.Context()))
		synctest.Wait()
		require.NoError(t, p.send(t.Context()))
	})
}

// A request is admitted as soon as an endpoint has capacity, before its Ready returns.
func TestCallSeesCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		for range 1000 {
			ss[0].open(false)
			require.Error(t, p.send(t.Context()))
			ss[0].open(true)
			require.NoError(t, p.send(t.Context()))
		}
	})
}

func TestContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		ss[1].open(false)
		p.add(ss...)
		p.remove(ss[0])
		waiting := make(chan error)
		go func() { waiting <- p.Ready(t.Context()) }()
		synctest.Wait()
		p.add(ss[0])
		require.NoError(t, <-waiting)
		p.remove(ss[0])
		go func() { waiting <- p.Ready(t.Context()) }()
		synctest.Wait()

		p.finish()
		for _, err := range []error{<-waiting, p.send(t.Context()), layer.Poll(p.balancer)} {
			require.ErrorIs(t, err, layer.ErrClosed)
			require.ErrorIs(t, err, errOver)
			require.EqualError(t, err, "balance web: closed: the balancer has ended: over")
		}
		require.Equal(t, "balance web: closed: the balancer has ended: over", p.Describe().State.Get("closed"))
	})
}

func TestChangesEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		p.add(ss...)
		close(p.feed)
		synctest.Wait()
		ss[0].open(false)
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		ss[0].open(true)
		synctest.Wait()
		require.EqualValues(t, 2, p.Describe().State.Get("ready"))
	})
}

func TestResolverError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		p.apply(change{State: resolve.StateExists, Err: io.ErrUnexpectedEOF})
		require.NoError(t, p.send(t.Context()))
		require.Equal(t, "unexpected EOF", p.Describe().State.Get("error"))
		p.apply(change{State: resolve.StateExists})
		require.Nil(t, p.Describe().State.Get("error"))
	})
}

// rude breaks the contract of Ready by another error.
type rude struct{ *server }

func (r rude) Ready(ctx context.Context) error {
	r.asked.Add(1)
	if r.isOpen.Load() {
		return nil
	}
	return io.ErrUnexpectedEOF
}

func TestReadyBreaksContract(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t)
		r := rude{newServer(1)}
		r.isOpen.Store(false)
		e := r.endpoint()
		e.Service = r
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{e}})
		time.Sleep(time.Minute)
		require.Less(t, r.asked.Load(), int64(100), "not in a spin")
		require.Greater(t, r.asked.Load(), int64(10))
		r.isOpen.Store(true)
		time.Sleep(2 * time.Second)
		require.NoError(t, p.send(t.Context()))
	})
}

func TestResolve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		updates := make(chan resolve.Update)
		r := resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
			assert.Equal(t, "web", target)
			return func(yield func(resolve.Update, error) bool) {
				for {
					select {
					case u := <-updates:
						if !yield(u, nil) {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			}
		})
		lives := make(map[string]context.Context)
		b := balance.Resolve(ctx, r, balance.Config{Target: "web"}, func(ctx context.Context, tg discover.Target) layer.Service[string, *response] {
			s := newServer(int(tg.Endpoint.Addr.Addr().As4()[3]))
			lives[s.addr.String()] = ctx
			return s
		}, balance.WithCompletion(layer.AtReturn[*response]))
		require.ErrorContains(t, layer.Poll(b), "not ready")
		updates <- resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{newServer(1).endpoint().Endpoint, newServer(2).endpoint().Endpoint}}
		require.NoError(t, b.Ready(ctx))
		rsp, err := b.Call(ctx, "")
		require.NoError(t, err)
		updates <- resolve.Update{Kind: resolve.Empty}
		synctest.Wait()
		for addr, life := range lives {
			require.Error(t, life.Err(), "%s is drained: open bodies do not count", addr)
		}
		require.NoError(t, rsp.Body.Close())
		_, err = b.Call(ctx, "")
		require.ErrorIs(t, err, discover.ErrNoEndpoints)
	})
}

// The number of concurrent waits is limited, and each endpoint gets its turn.
func TestTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const most = 128
		p, ss := newPool(t), servers(1000)
		for _, s := range ss {
			s.open(false)
		}
		p.add(ss...)
		waiting := func() (n int64) {
			synctest.Wait()
			for _, s := range ss {
				n += s.waiting.Load()
			}
			return n
		}
		for range 200 {
			require.EqualValues(t, most, waiting())
			time.Sleep(time.Second / 2)
		}
		asked := 0
		for _, s := range ss {
			if s.asked.Load() > 1 { // beside the poll when it was added
				asked++
			}
		}
		require.Equal(t, len(ss), asked, "each has had its turn")

		for _, s := range ss {
			s.open(true)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, len(ss), p.Describe().State.Get("ready"))
		require.Zero(t, waiting())
	})
}

// An endpoint keeps its turn while no other one waits, because a Ready that connects may
// take longer than a turn.
func TestTurnsWithoutOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].open(false)
		p.add(ss...)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 2, ss[0].asked.Load(), "the poll when it was added, and one turn")
		ss[0].open(true)
		synctest.Wait()
		require.NoError(t, p.send(t.Context()))
	})
}

// Capacity that a request frees is used at once, also if more endpoints are at their
// limit than have a turn.
func TestTurnsFreedCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(200)
		p.add(ss...)
		var open []*response
		for range ss {
			rsp, err := p.Call(t.Context(), "")
			require.NoError(t, err)
			open = append(open, rsp)
		}
		served := make(map[*server]bool) // endpoints with a response that is open
		for _, s := range ss {
			served[s] = s.calls.Load() > 0
			s.open(false)
		}
		for p.Describe().State.Get("ready") != 0 {
			_, err := p.Call(t.Context(), "")
			require.Error(t, err)
		}
		synctest.Wait()
		var last *server
		for _, s := range ss {
			if s.waiting.Load() == 0 && served[s] {
				last = s
			}
		}
		require.NotNil(t, last)
		last.isOpen.Store(true) // without ending its Ready
		for _, rsp := range open {
			require.NoError(t, rsp.Body.Close())
		}
		require.EqualValues(t, 1, p.Describe().State.Get("ready"))
		require.NoError(t, p.send(t.Context()))
	})
}

// through sends 100 requests a second for a minute to ten endpoints with breakers. The
// i-th one fails fails(i) of its requests. It returns the share of good responses and the
// shares of the endpoints.
func through(t *testing.T, breaker layer.BreakerPolicy, fails func(i int) float64, opts ...option) (good float64, shares [10]float64) {
	const n = 6000
	random := seeded()
	p := newPool(t, append(opts, balance.WithRand[*response](random), balance.WithClassifier(layer.DefaultClassifier[*response]))...)
	c := change{State: resolve.StateExists}
	for i, s := range servers(10) {
		s.serve = func(context.Context, string) (*response, error) {
			shares[i] += 1.0 / n
			if float64(random()>>11)/(1<<53) < fails(i) {
				return nil, errors.New("failed")
			}
			return body(""), nil
		}
		e := s.endpoint()
		e.Service = layer.Breaker[string, *response](breaker)(s)
		c.Added = append(c.Added, e)
	}
	p.feed <- c
	<-p.taken
	for range n {
		if p.send(t.Context()) == nil {
			good += 1.0 / n
		}
		time.Sleep(10 * time.Millisecond)
	}
	return good, shares
}

// Rejections by breakers leave at least MinReady endpoints.
func TestBreakersMinReady(t *testing.T) {
	none := layer.BreakerPolicy{ConsecutiveFailures: -1}
	for name, breaker := range map[string]layer.BreakerPolicy{"consecutive": {}, "unified": layer.UnifiedBreaker()} {
		for rule, opts := range map[string][]option{"latency": nil, "in turn": roundRobin(balance.OutlierDetection{})} {
			t.Run(fmt.Sprint(name, "/", rule), func(t *testing.T) {
				quarter := func(int) float64 { return 0.25 }
				var good, without float64
				bubble(t, func(t *testing.T) { good, _ = through(t, breaker, quarter, opts...) })
				bubble(t, func(t *testing.T) { without, _ = through(t, none, quarter, opts...) })
				t.Logf("all fail a quarter: %.1f %% good, %.1f %% without breakers", 100*good, 100*without)
				assert.InDelta(t, without, good, 0.02)

				var shares [10]float64
				bubble(t, func(t *testing.T) {
					good, shares = through(t, breaker, func(i int) float64 { return float64(1 - min(i, 1)) }, opts...)
				})
				t.Logf("one fails always: %.2f %% good", 100*good)
				assert.Greater(t, good, 0.99)
				assert.Less(t, shares[0], 0.01)
			})
		}
	}
}

// While all endpoints fail, their breakers are ignored, so that each gets its share of the requests.
// No request is rejected.
func TestBreakersPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		failed := func(int) float64 {
			if d := time.Since(began); d < 5*time.Second || d >= 30*time.Second {
				return 0
			}
			return 1
		}
		good, shares := through(t, layer.BreakerPolicy{}, failed, roundRobin(balance.OutlierDetection{})...)
		assert.InDelta(t, 35.0/60, good, 0.01)
		sent := 0.0
		for _, share := range shares {
			assert.InDelta(t, 0.1, share, 0.03)
			sent += share
		}
		assert.InDelta(t, 1, sent, 1e-6)
	})
}

// refusing rejects all requests as a breaker, also those with PastBreakers.
type refusing struct{ *server }

func (refusing) Call(context.Context, string) (*response, error) {
	return nil, &layer.Error{Layer: "breaker", Kind: layer.ErrNotReady}
}

func TestBreakersRejectPastBreakers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		c := change{State: resolve.StateExists}
		for _, s := range ss {
			e := s.endpoint()
			e.Service = refusing{s}
			c.Added = append(c.Added, e)
		}
		p.apply(c)
		for _, s := range ss {
			s.open(false)
		}
		require.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady)
		require.ErrorContains(t, p.send(t.Context()), "0 of 4 endpoints ready")
		require.Error(t, layer.Poll(p.balancer))
	})
}

// An endpoint that is not ready for another reason leaves the ready set.
func TestMinReadyOtherRejections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		p.add(ss...)
		for _, s := range ss[1:] {
			s.open(false)
		}
		assert.Zero(t, p.sends(t, 20))
		synctest.Wait()
		assert.Equal(t, 1, p.Describe().State.Get("ready"))
		ss[0].open(false)
		assert.Equal(t, 20, p.sends(t, 20))
		assert.Zero(t, p.Describe().State.Get("ready"))
	})
}

// A request that is sent again goes to an endpoint that it has not tried, until it has
// tried all (envoyproxy/envoy#2259, grpc/proposal#12).
func TestRetryUntriedEndpoint(t *testing.T) {
	const n = 10
	for round := range 50 {
		b, _ := of(t, n)
		tries := new(layer.Attempts)
		ctx := layer.WithAttempts(t.Context(), tries)
		for i := range n {
			_, err := b.Call(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, i+1, tries.Len(), "round %d: somewhere it has been", round)
		}
		_, err := b.Call(ctx, 1)
		require.NoError(t, err, "it has been everywhere, and may go anywhere")
		require.Equal(t, n, tries.Len())
	}
}

func TestRetryAttemptsOfOthers(t *testing.T) {
	b, _ := of(t, 2)
	for range 20 {
		tries := new(layer.Attempts)
		_, err := b.Call(layer.WithAttempts(t.Context(), tries), 1)
		require.NoError(t, err)
		assert.Equal(t, 1, tries.Len())
	}
}

// In a large set the few tried endpoints are skipped.
func TestRetryOfManyEndpoints(t *testing.T) {
	b, _ := of(t, 1000)
	tries := new(layer.Attempts)
	ctx := layer.WithAttempts(t.Context(), tries)
	for i := range 10 {
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, i+1, tries.Len())
	}
}

// A context with attempts and a second pick, as in a retry.
func BenchmarkPickElsewhere(b *testing.B) {
	svc, _ := of(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		tries := new(layer.Attempts)
		ctx := layer.WithAttempts(context.Background(), tries)
		_, _ = svc.Call(ctx, 1)
		_, _ = svc.Call(ctx, 1)
	}
}

// An endpoint that always fails gets one attempt of a request, so that a request to ten
// endpoints with one failing never fails.
func TestRetryLayer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t, neverFailing())
		all := servers(10)
		for _, s := range all[1:] {
			s.serve = func(context.Context, string) (*response, error) {
				time.Sleep(10 * time.Millisecond)
				return body("well"), nil
			}
		}
		all[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		p.add(all...)
		svc := layer.NewStack[string](layer.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
			if errors.Is(o.Err, errBroken) {
				return layer.Retryable
			}
			return layer.DefaultClassifier(o)
		})).Retry(layer.RetryPolicy[string, *response]{MaxAttempts: 2, Budget: layer.NewBudget(0, 0, 1000)}).Service(p.balancer)
		for range 500 {
			rsp, err := svc.Call(t.Context(), "")
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.Greater(t, all[0].calls.Load(), int64(10), "it was never asked, and nothing was shown")
	})
}

var errBroken = errors.New("broken")

// A hedge goes to another endpoint.
func TestHedgeLayer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t)
		both := servers(2)
		p.add(both...)
		svc := layer.NewStack[string, *response]().
			Hedge(layer.HedgePolicy[string]{MinDelay: time.Second, MaxDelay: time.Second, Budget: layer.NewBudget(0, 0, 1000)}).
			Service(p.balancer)
		for _, s := range both {
			s.serve = func(ctx context.Context, _ string) (*response, error) {
				if both[0].calls.Load()+both[1].calls.Load() == 1 { // the first of the two
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return body("well"), nil
			}
		}
		rsp, err := svc.Call(t.Context(), "")
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.EqualValues(t, 1, both[0].calls.Load())
		require.EqualValues(t, 1, both[1].calls.Load())
	})
}

// Ready before each Call, as in a queue, does not skip endpoints.
func TestReadyWithRoundRobin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin()})), servers(4)
		p.add(ss...)
		for range 40 {
			require.NoError(t, p.Ready(t.Context()))
			require.NoError(t, p.send(t.Context()))
		}
		for _, s := range ss {
			assert.EqualValues(t, 10, s.calls.Load())
		}
	})
}

// RoundRobin and Random divide requests by weight. In turn, no endpoint waits much longer than its share.
func TestWeightsWithRoundRobin(t *testing.T) {
	for name, picker := range map[string]balance.Picker{"round robin": balance.RoundRobin(), "random": balance.Random()} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Picker: picker})), servers(3)
			var added []*endpoint
			for i, s := range ss {
				e := s.labelled(nil)
				e.Weight = []uint32{10_000, 30_000, 0}[i] // 0 means 10 000
				added = append(added, e)
			}
			p.apply(change{State: resolve.StateExists, Added: added})
			for range 1000 {
				require.NoError(t, p.send(t.Context()))
			}
			for i, want := range []float64{200, 600, 200} {
				assert.InDelta(t, want, ss[i].calls.Load(), map[string]float64{"round robin": 3, "random": 100}[name], name)
			}
		})
	}
}

// A request that has tried all endpoints of one zone goes to the other one regardless of
// cost.
func TestRetryOtherZone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Zone: "a"})), servers(2)
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{
			ss[0].labelled(map[string]string{"zone": "a"}), ss[1].labelled(map[string]string{"zone": "b"}),
		}})
		for range 10 {
			tries := new(layer.Attempts)
			ctx := layer.WithAttempts(t.Context(), tries)
			for range 3 {
				require.NoError(t, p.send(ctx))
			}
			require.Equal(t, 2, tries.Len())
		}
		require.EqualValues(t, 20, ss[0].calls.Load(), "the first try, and the third")
		require.EqualValues(t, 10, p.Describe().State.Get("other_zone_picks"))
	})
}

func TestClassifierPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(func(layer.Outcome[*response]) layer.Class { panic("unforeseen") })), servers(1)
		p.add(ss...)
		require.Panics(t, func() { _, _ = p.Call(t.Context(), "") })
		require.Zero(t, p.Snapshot()[0].InFlight)
	})
}

func TestPolicyLongTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging(), balance.WithPolicy[*response](balance.Policy{
			Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 2, BaseEjectionTime: time.Second, MaxEjectionTime: math.MaxInt64},
		})), servers(4)
		p.add(ss...)
		ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		for range 8 {
			_ = p.send(t.Context())
		}
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, "ready", p.of(ss[0]).Get("state"))
	})
}

// After 52 days the ticks wrap around, and the slow start does not begin again.
func TestSlowStartTicksWrap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{SlowStart: time.Hour})), servers(2)
		p.add(ss[0])
		time.Sleep(2 * time.Hour)
		require.NoError(t, p.send(t.Context()))
		p.add(ss[1])
		const days = time.Duration(1<<32) << 20
		time.Sleep(days - 2*time.Hour + time.Minute)
		require.InDelta(t, days+time.Minute, p.Snapshot()[0].Age, float64(time.Second))
		for range 1000 {
			require.NoError(t, p.send(t.Context()))
		}
		require.InDelta(t, 500, ss[1].calls.Load(), 100)
	})
}

// An endpoint that was examined twice is shown once.
func TestExplainOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		p.add(ss...)
		ctx, why := layer.Explain(layer.WithAttempts(t.Context(), new(layer.Attempts)))
		for range 3 {
			require.NoError(t, p.send(ctx))
		}
		require.Len(t, why.Choices()[2].Children, 2)
	})
}

// For the race detector.
func TestExplainWhileZonesChange(t *testing.T) {
	b, apply := of(t, 4, balance.WithPolicy[int](balance.Policy{Zone: "a"}))
	var all sync.WaitGroup
	defer all.Wait()
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		for i := range 2000 {
			e := intEndpoint(0)
			e.Labels = map[string]string{"zone": string(rune('a' + i%2))}
			apply(intChange{State: resolve.StateExists, Changed: []*discover.Endpoint[int, int]{e}})
		}
	})
	for {
		ctx, _ := layer.Explain(t.Context())
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		select {
		case <-done:
			return
		default:
		}
	}
}

// knowing is a server with a classifier.
type knowing struct {
	*server
	classify layer.Classifier[*response]
}

func (k knowing) Classifier() layer.Classifier[*response] { return k.classify }

// The classifier of the endpoints applies unless the option sets another one.
func TestClassifier(t *testing.T) {
	failure := func(layer.Outcome[*response]) layer.Class { return layer.Failure }
	success := func(layer.Outcome[*response]) layer.Class { return layer.Success }
	for name, tt := range map[string]struct {
		endpoints []layer.Classifier[*response] // nil: the service has no classifier
		opts      []option
		errs      bool // the servers return errors
		failing   bool
	}{
		"none, a response":             {endpoints: []layer.Classifier[*response]{nil}},
		"none, an error":               {endpoints: []layer.Classifier[*response]{nil}, errs: true, failing: true},
		"that of the service":          {endpoints: []layer.Classifier[*response]{failure}, failing: true},
		"of the first that has one":    {endpoints: []layer.Classifier[*response]{nil, failure, success}, failing: true},
		"the option, in place of none": {endpoints: []layer.Classifier[*response]{nil}, opts: []option{balance.WithClassifier(failure)}, failing: true},
		"the option, in place of another": {
			endpoints: []layer.Classifier[*response]{failure}, opts: []option{balance.WithClassifier(success)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPool(t, append(tt.opts, balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin()}))...)
				ss := servers(len(tt.endpoints))
				for i, classify := range tt.endpoints { // each one a change of its own
					e := ss[i].endpoint()
					if e.Service = ss[i]; classify != nil {
						e.Service = layer.Limit[string, *response](10)(knowing{ss[i], classify})
					}
					if tt.errs {
						ss[i].fail(always)
					}
					p.apply(change{Added: []*discover.Endpoint[string, *response]{e}})
				}
				p.sends(t, 10*len(ss))
				for _, e := range p.Snapshot() {
					assert.Equal(t, tt.failing, e.ErrorRate > 0)
				}
			})
		})
	}
}

func TestDescribe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		ss[1].open(false)
		ss[2].close()
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{
			ss[2].endpoint(), ss[1].endpoint(), ss[0].labelled(map[string]string{"zone": "b", "pod": "web-1"}),
		}})
		synctest.Wait()
		_, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		d := layer.Describe(p.balancer)
		require.Equal(t, `balance    target=web state=exists pick=cheapest of up to 24 in an aperture cost=ewma endpoints=3 ready=1 picks=1
  endpoint   addr=10.0.0.1:80 state=ready ewma=30ms known=false in_flight=1 picks=1 labels=map[pod:web-1 zone:b]
  balance_test.server
  endpoint   addr=10.0.0.2:80 state=unready ewma=30ms known=false in_flight=0 picks=0 reason=not ready
  balance_test.server
  endpoint   addr=10.0.0.3:80 state=closed ewma=30ms known=false in_flight=0 picks=0 reason=server: closed: shut
  balance_test.server
`, d.String())

		text, err := json.Marshal(d)
		require.NoError(t, err)
		var read struct {
			State    map[string]any
			Children []struct{ State map[string]any }
		}
		require.NoError(t, json.Unmarshal(text, &read))
		require.Equal(t, "exists", read.State["state"])
		require.Equal(t, "10.0.0.1:80", read.Children[0].State["addr"])
		require.Equal(t, map[string]any{"zone": "b", "pod": "web-1"}, read.Children[0].State["labels"])
	})
}

func port(n uint16) resolve.Endpoint {
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), n)}}
}

// moody has a Ready that panics for a while.
type moody struct {
	layer.Service[int, uint16]
	panics atomic.Bool
}

func (m *moody) Ready(ctx context.Context) error {
	if m.panics.Load() {
		panic("ready boom")
	}
	return m.Service.Ready(ctx)
}

// A MakeService or a Ready that panics affects one endpoint only.
func TestMakeServicePanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		late := new(moody)
		late.panics.Store(true)
		b := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"web": {port(1), port(2), port(3), port(4)}}), balance.Config{Target: "web"},
			func(_ context.Context, tg discover.Target) layer.Service[int, uint16] {
				n := tg.Endpoint.Addr.Port()
				svc := layer.Func[int, uint16](func(context.Context, int) (uint16, error) { return n, nil })
				switch n {
				case 1:
					panic("make boom")
				case 2:
					late.Service = svc
					return late
				}
				return svc
			})
		synctest.Wait()
		served := func() map[uint16]bool {
			by := make(map[uint16]bool)
			for range 200 {
				n, err := b.Call(ctx, 1)
				require.NoError(t, err)
				by[n] = true
			}
			return by
		}
		require.Equal(t, map[uint16]bool{3: true, 4: true}, served())
		states := b.Snapshot()
		require.Equal(t, "closed", states[0].State)
		require.ErrorIs(t, states[0].Reason, layer.ErrClosed)
		require.ErrorContains(t, states[0].Reason, "discover web 10.0.0.1:1: closed: no service was made for it: MakeService: panic at balancer_test.go:")
		require.ErrorContains(t, states[0].Reason, ": make boom")
		require.Equal(t, "unready", states[1].State)
		require.ErrorContains(t, states[1].Reason, ": ready boom")

		late.panics.Store(false)
		require.Eventually(t, func() bool { return b.Snapshot()[1].State == "ready" }, 10e9, 1e8)
		require.Equal(t, map[uint16]bool{2: true, 3: true, 4: true}, served())
	})
}

// The set stays after a panic of the resolver, which is its last error.
func TestResolverPanics(t *testing.T) {
	broken := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{port(1)}}, nil)
			panic("resolver boom")
		}
	})
	for name, r := range map[string]resolve.Resolver{
		"itself":     broken,
		"Merge":      resolve.Merge(broken),
		"Fallback":   resolve.Fallback(broken, static.New(nil)),
		"ServeStale": resolve.ServeStale(broken, resolve.StalePolicy{}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b := balance.Resolve(ctx, r, balance.Config{Target: "web"}, func(context.Context, discover.Target) layer.Service[int, int] {
					return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
				})
				synctest.Wait()
				got, err := b.Call(ctx, 7)
				require.NoError(t, err)
				require.Equal(t, 7, got)
				if name == "itself" {
					require.Contains(t, b.Describe().State.Get("error"), "the resolver: panic at balancer_test.go:")
					return
				}
				text := ""
				until, stop := context.WithTimeout(ctx, time.Second)
				defer stop()
				for _, err := range r.Resolve(until, "web") {
					if err != nil {
						text += err.Error()
					}
				}
				require.Contains(t, text, "the resolver: panic at balancer_test.go:")
			})
		})
	}
}

func TestChangesPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := balance.New(ctx, balance.Config{Target: "web"}, func(yield func(change) bool) {
			yield(change{State: resolve.StateExists, Added: []*endpoint{s.endpoint()}})
			panic("changes boom")
		})
		synctest.Wait()
		_, err := b.Call(ctx, "")
		require.NoError(t, err)
		require.Contains(t, b.Describe().State.Get("error"), "changes boom")
	})
}

// closing counts its Close.
type closing struct {
	io.Reader
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// The response is closed if a callback panics.
func TestCompletionPanicClosesResponse(t *testing.T) {
	for name, option := range map[string]option{
		"classifier": balance.WithClassifier(func(layer.Outcome[*response]) layer.Class { panic("boom") }),
		"completion": balance.WithCompletion(func(context.Context, *response, layer.Observer) *response { panic("boom") }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, s := newPool(t, option), newServer(1)
				var body closing
				s.serve = func(context.Context, string) (*response, error) { return &response{Body: &body}, nil }
				p.add(s)
				require.PanicsWithValue(t, "boom", func() { _, _ = p.balancer.Call(t.Context(), "") })
				require.Equal(t, 1, body.closed)
				require.Zero(t, p.balancer.Snapshot()[0].InFlight)
			})
		})
	}
}

func TestNilOption(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := balance.Resolve(ctx, static.New(nil), balance.Config{Target: "web"}, func(context.Context, discover.Target) layer.Service[int, int] {
		return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	}, nil)
	_, err := b.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestNilCompletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithCompletion[*response](nil)), servers(1)
		p.add(ss...)
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		require.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
		require.NoError(t, rsp.Body.Close())
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

// Programming errors panic in the constructor.
func TestConstructorsPanic(t *testing.T) {
	type (
		svc = layer.Service[int, int]
		b   = balance.Balancer[int, int]
	)
	mk := func(context.Context, discover.Target) svc { return nil }
	none := func(func(discover.Change[int, int]) bool) {}
	r := static.New(nil)
	for want, construct := range map[string]func() *b{
		"balance: nil changes":     func() *b { return balance.New[int, int](t.Context(), balance.Config{Target: "web"}, nil) },
		"balance: nil resolver":    func() *b { return balance.Resolve(t.Context(), nil, balance.Config{Target: "web"}, mk) },
		"balance: nil MakeService": func() *b { return balance.Resolve[int, int](t.Context(), r, balance.Config{Target: "web"}, nil) },
		"balance: policy: Decay is -1ns, want 0 for the default, or at least 1ms": func() *b {
			return balance.New(t.Context(), balance.Config{Target: "web"}, none, balance.WithPolicy[int](balance.Policy{Decay: -1}))
		},
		"balance: outlier detection: MinReady is 2, want from 0, for the default, to 1": func() *b {
			return balance.Resolve(t.Context(), r, balance.Config{Target: "web"}, mk, balance.WithPolicy[int](balance.Policy{OutlierDetection: balance.OutlierDetection{MinReady: 2}}))
		},
	} {
		require.PanicsWithValue(t, want, func() { construct() })
	}
	require.PanicsWithValue(t, "discover: nil resolver", func() { discover.Endpoints(t.Context(), nil, "web", mk) })
	require.PanicsWithValue(t, "discover: nil MakeService", func() { discover.Endpoints[int, int](t.Context(), r, "web", nil) })
}

func TestCallDeadlineExceeded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		ctx, leave := context.WithCancelCause(t.Context())
		leave(layer.ErrAttemptTimeout)
		require.EqualError(t, p.send(ctx), "balance web: not ready: deadline exceeded: attempt timeout")
	})
}
