package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
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
		b := balance.Resolve(ctx, r, "web", func(ctx context.Context, tg discover.Target) layer.Service[string, *response] {
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
