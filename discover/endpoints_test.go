package discover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// start ranges over the endpoints of "web" in the background.
func start(ctx context.Context, src resolve.Resolver, made *endpoints) *consumer {
	c := &consumer{}
	go c.run(discover.Endpoints(ctx, src, "web", made.Make))
	synctest.Wait()
	return c
}

// bubble runs f in a synctest bubble with a context that ends before it does.
func bubble(t *testing.T, f func(t *testing.T, ctx context.Context, src *source, made *endpoints)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		f(t, ctx, newSource(), &endpoints{})
	})
}

func TestEndpointsChanges(t *testing.T) {
	h2 := at(1)
	h2.Protocol = resolve.H2
	weighty := labelled(2, "b")
	weighty.Weight = 5
	lost := errors.New("connection lost")
	for _, tt := range []struct {
		name  string
		items []item
		want  []string
	}{
		{"replace", []item{{update: replace(at(1), at(2))}, {update: replace(at(2), at(3))}}, []string{"+1 +2 exists", "+3 -1 exists"}},
		{"add and remove", []item{{update: add(at(1))}, {update: add(at(2))}, {update: remove(1)}}, []string{"+1 exists", "+2 exists", "-1 exists"}},
		{"labels", []item{{update: add(at(1), labelled(2, "a"))}, {update: add(labelled(2, "b"))}}, []string{"+1 +2 exists", "~2 exists"}},
		{"weight", []item{{update: add(labelled(2, "b"))}, {update: add(weighty)}}, []string{"+2 exists", "~2 exists"}},
		{"another identity", []item{{update: add(at(1))}, {update: add(h2)}}, []string{"+1 exists", "+1 -1 exists"}},
		{"removed and added", []item{{update: add(at(1))}, {update: remove(1)}, {update: add(at(1))}}, []string{"+1 exists", "-1 empty", "+1 exists"}},
		{"empty", []item{{update: resolve.Update{Kind: resolve.Empty}}}, []string{"empty"}},
		{"emptied", []item{{update: add(at(1))}, {update: resolve.Update{Kind: resolve.Empty}}}, []string{"+1 exists", "-1 empty"}},
		{"does not exist", []item{{update: add(at(1))}, {update: resolve.Update{Kind: resolve.DoesNotExist}}}, []string{"+1 exists", "-1 does not exist"}},
		{"redundant", []item{
			{update: add(at(1))},
			{update: add(at(1))},
			{update: replace(at(1))},
			{update: remove(7)},
			{update: add()},
			{update: remove(1)},
			{update: resolve.Update{Kind: resolve.Empty}},
		}, []string{"+1 exists", "-1 empty"}},
		{"errors", []item{{err: lost}, {update: add(at(1))}, {err: lost}, {update: add(at(1))}}, []string{
			"pending: connection lost", "+1 exists", "exists: connection lost", "exists",
		}},
		{"unresolvable", []item{{update: add(at(2), at(1))}, {err: fmt.Errorf("web: %w", resolve.ErrUnresolvable)}}, []string{
			"+1 +2 exists", "-1 -2 pending: web: not a name that this resolver resolves", "ended",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
				c := start(ctx, src, made)
				for _, i := range tt.items {
					src.items <- i
					synctest.Wait()
				}
				got := c.take()
				if c.isOver() {
					got = append(got, "ended")
				}
				require.Equal(t, tt.want, got)
				require.Equal(t, []string{"web"}, src.targets)
			})
		})
	}
}

func TestChangeReset(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		var resets []bool
		go func() {
			for c := range discover.Endpoints(ctx, src, "web", made.Make) {
				resets = append(resets, c.Reset)
			}
		}()
		for _, u := range []resolve.Update{replace(at(1)), add(at(2)), replace(at(1), at(2)), remove(2), {Kind: resolve.DoesNotExist}} {
			src.update(u)
			synctest.Wait()
		}
		src.fail(errors.New("lost"))
		synctest.Wait()
		require.Equal(t, []bool{true, false, false, true, false}, resets, "an update without effect yields nothing")
	})
}

// Ready of a removed endpoint ends, even while an open response keeps its service.
func TestMemberReadyEndsOnRemoval(t *testing.T) {
	for name, end := range map[string]func(src *source, cancel func()){
		"removed":  func(src *source, _ func()) { src.update(remove(1)) },
		"replaced": func(src *source, _ func()) { src.update(add(named(1, "b"))) },
		"ended":    func(_ *source, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				c := start(ctx, src, made)
				src.update(add(at(1)))
				synctest.Wait()
				e := c.at(1)
				rsp, err := e.Service.Call(t.Context(), "")
				require.NoError(t, err)
				made.of(1)[0].shut.Store(true)
				results := make(chan error, 1)
				go func() { results <- e.Service.Ready(t.Context()) }()
				synctest.Wait()
				require.Empty(t, results)
				end(src, cancel)
				synctest.Wait()
				require.Len(t, results, 1, "Ready still waits")
				require.ErrorIs(t, <-results, layer.ErrClosed)
				require.NoError(t, rsp.Body.Close())
			})
		})
	}
}

// Ready called by the consumer in its loop ends with ctx as well.
func TestMemberReadyEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		results := make(chan error, 1)
		own, leave := context.WithCancel(context.Background())
		defer leave()
		go func() {
			for c := range discover.Endpoints(ctx, src, "web", made.Make) {
				for _, e := range c.Added {
					rsp, err := e.Service.Call(own, "")
					assert.NoError(t, err)
					made.of(1)[0].shut.Store(true)
					results <- e.Service.Ready(own)
					assert.NoError(t, rsp.Body.Close())
				}
			}
		}()
		src.update(add(at(1)))
		synctest.Wait()
		require.Empty(t, results)
		cancel()
		synctest.Wait()
		require.Len(t, results, 1, "Ready still waits")
		require.ErrorIs(t, <-results, layer.ErrClosed)
	})
}

func TestMemberReadyAllocatesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		svc := c.at(1).Service
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = svc.Ready(ctx) }))
	})
}

// A panic of the consumer, or the exit of its goroutine, is treated as a break. The
// endpoints that its last change removed are retired too.
func TestEndpointsConsumerPanics(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("by the consumer") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
				go func() {
					defer func() { _ = recover() }()
					for c := range discover.Endpoints(ctx, src, "web", made.Make) {
						if len(c.Removed) > 0 {
							leave()
						}
					}
				}()
				src.update(add(at(1), at(2)))
				synctest.Wait()
				src.update(remove(1))
				synctest.Wait()
				require.Len(t, src.released, 1)
				for i := range 2 {
					require.Error(t, made.of(1 + i)[0].ctx.Err(), "endpoint %d", 1+i)
				}
			})
		})
	}
}

// An update without effect does not set Reset of the next change.
func TestChangeResetWithoutEffect(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		var results []string
		go func() {
			for c := range discover.Endpoints(ctx, src, "web", made.Make) {
				results = append(results, fmt.Sprint(summary(c), " ", c.Reset))
			}
		}()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, results)
			results = nil
		}
		all := replace(named(1, "a"))
		src.update(all)
		expect("+1 exists true")
		src.update(all)
		src.fail(errors.New("lost"))
		expect("exists: lost false")
		src.update(all)
		expect("exists true")

		src.update(replace(named(1, "a")))
		expect()
		src.update(add(named(1, "b")))
		expect("+1 -1 exists false")
	})
}

func TestServiceFollowsID(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(labelled(1, "a")))
		synctest.Wait()
		first := c.endpoint(1)
		require.Equal(t, discover.Target{Name: "web", Endpoint: labelled(1, "a")}, made.of(1)[0].target)
		require.Equal(t, "web", first.Target)

		src.update(add(labelled(1, "b")))
		src.update(replace(labelled(1, "b")))
		synctest.Wait()
		second := c.endpoint(1)
		require.Len(t, made.of(1), 1, "labels are not part of the ID")
		require.Same(t, first.Service, second.Service)
		require.Equal(t, "a", first.Labels["zone"], "a yielded endpoint is immutable")
		require.Equal(t, "b", second.Labels["zone"])
		heavy := labelled(1, "b")
		heavy.Weight = 5
		src.update(replace(heavy))
		synctest.Wait()
		require.Same(t, first.Service, c.endpoint(1).Service)
		require.EqualValues(t, 5, c.endpoint(1).Weight)
		require.Len(t, made.of(1), 1, "the weight is not part of the ID")
		require.NoError(t, made.of(1)[0].ctx.Err(), "the service stays")

		src.update(remove(1))
		src.update(add(labelled(1, "b")))
		synctest.Wait()
		require.Len(t, made.of(1), 2, "a removed endpoint that returns is new")
		require.Error(t, made.of(1)[0].ctx.Err())
		require.NoError(t, made.of(1)[1].ctx.Err())
	})
}

func TestMemberDrains(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1), at(2)))
		synctest.Wait()
		one, two := c.endpoint(1), c.endpoint(2)
		reading, err := one.Service.Call(ctx, "a")
		require.NoError(t, err)
		waiting := make(chan struct{})
		made.of(1)[0].serve = func(context.Context, string) (*response, error) { <-waiting; return nil, io.ErrUnexpectedEOF }
		go func() { _, _ = one.Service.Call(ctx, "b") }()
		synctest.Wait()

		src.update(remove(1, 2))
		synctest.Wait()
		require.Error(t, made.of(2)[0].ctx.Err(), "no response was open")
		require.NoError(t, made.of(1)[0].ctx.Err(), "a body and a call are open")
		for _, e := range []*endpoint{one, two} {
			_, err := e.Service.Call(ctx, "c")
			require.ErrorIs(t, err, layer.ErrClosed)
			require.EqualError(t, err, "discover web "+e.Addr.String()+": closed: the endpoint was removed")
			require.ErrorIs(t, e.Service.Ready(ctx), layer.ErrClosed)
			require.ErrorIs(t, layer.Poll(e.Service), layer.ErrClosed)
		}
		require.Equal(t, 2, made.of(1)[0].calls)

		close(waiting)
		synctest.Wait()
		require.NoError(t, made.of(1)[0].ctx.Err(), "a body is open")
		text, err := io.ReadAll(reading.Body)
		require.NoError(t, err)
		require.Equal(t, addr(1).String(), string(text))
		require.Error(t, made.of(1)[0].ctx.Err(), "the body was read to its end")
	})
}

func TestMemberCallerCanceled(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		caller, leave := context.WithCancel(ctx)
		_, err := c.endpoint(1).Service.Call(caller, "")
		require.NoError(t, err)
		src.update(remove(1))
		synctest.Wait()
		require.NoError(t, made.of(1)[0].ctx.Err())
		leave()
		synctest.Wait()
		require.Error(t, made.of(1)[0].ctx.Err())
	})
}

func TestMemberCallPanics(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		made.of(1)[0].serve = func(context.Context, string) (*response, error) { panic("boom") }
		require.PanicsWithValue(t, "boom", func() { _, _ = c.endpoint(1).Service.Call(ctx, "") })
		src.update(remove(1))
		synctest.Wait()
		require.Error(t, made.of(1)[0].ctx.Err())
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

// A Completion that panics keeps neither the response nor the service of the
// endpoint.
func TestMemberCompletionPanics(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		boom := func(context.Context, *response, layer.Observer) *response { panic("boom") }
		go c.run(discover.Endpoints(ctx, src, "web", made.Make, discover.WithCompletion(boom)))
		src.update(add(at(1)))
		synctest.Wait()
		var body closing
		made.of(1)[0].serve = func(context.Context, string) (*response, error) { return &response{Body: &body}, nil }
		require.PanicsWithValue(t, "boom", func() { _, _ = c.endpoint(1).Service.Call(ctx, "") })
		require.Equal(t, 1, body.closed)
		src.update(remove(1))
		synctest.Wait()
		require.Error(t, made.of(1)[0].ctx.Err())
	})
}

func TestMemberCallWithDoneContext(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		left := errors.New("left")
		gone, leave := context.WithCancelCause(ctx)
		leave(left)
		_, err := c.endpoint(1).Service.Call(gone, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, left)
		require.Zero(t, made.of(1)[0].calls)
	})
}

func TestEndpointsConsumerBreaks(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		var kept *endpoint
		c := &consumer{on: func(ch change) bool {
			if len(ch.Added) > 0 {
				kept = ch.Added[0]
			}
			return len(ch.Removed) == 0
		}}
		go c.run(discover.Endpoints(ctx, src, "web", made.Make))
		src.update(add(at(1), at(2), at(3)))
		synctest.Wait()
		rsp, err := kept.Service.Call(ctx, "")
		require.NoError(t, err)
		src.update(remove(3))
		synctest.Wait()
		require.True(t, c.isOver())
		<-src.released
		require.Error(t, made.of(2)[0].ctx.Err())
		require.Error(t, made.of(3)[0].ctx.Err(), "removed by the last change")
		require.NoError(t, made.of(1)[0].ctx.Err(), "drained like a removed endpoint")
		require.NoError(t, rsp.Body.Close())
		require.Error(t, made.of(1)[0].ctx.Err())
	})
}

// The range ends after the resolver has returned.
func TestEndpointsWaitsForResolver(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, _ *source, made *endpoints) {
		var released bool
		r := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
			return func(yield func(resolve.Update, error) bool) {
				require.False(t, yield(add(at(1)), nil))
				time.Sleep(time.Second) // such as closing a connection
				released = true
			}
		})
		for range discover.Endpoints(ctx, r, "web", made.Make) {
			break
		}
		require.True(t, released)
	})
}

func TestEndpointsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		ctx, cancel := context.WithCancel(ctx)
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		_, err := c.endpoint(1).Service.Call(context.Background(), "")
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		require.True(t, c.isOver())
		<-src.released
		require.Error(t, made.of(1)[0].ctx.Err(), "although a response is open")
		_, err = c.endpoint(1).Service.Call(context.Background(), "")
		require.ErrorIs(t, err, layer.ErrClosed)
	})
}

func TestEndpointsResolverEnds(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		close(src.items)
		time.Sleep(time.Hour)
		require.False(t, c.isOver())
		require.NoError(t, layer.Poll(c.endpoint(1).Service))
		require.NoError(t, made.of(1)[0].ctx.Err())
	})
}

func TestEndpointsRangedTwice(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		changes := discover.Endpoints(ctx, src, "web", made.Make)
		var cs [2]consumer
		for i := range cs {
			go cs[i].run(changes)
			synctest.Wait()
		}
		src.update(add(at(1)))
		src.update(add(at(1)))
		synctest.Wait()
		require.Equal(t, []string{"+1 exists"}, cs[0].take())
		require.Equal(t, []string{"+1 exists"}, cs[1].take())
		require.Len(t, made.of(1), 2)
	})
}

func TestWithCompletion(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", made.Make, discover.WithCompletion(layer.AtReturn[*response])))
		src.update(add(at(1)))
		synctest.Wait()
		_, err := c.endpoint(1).Service.Call(ctx, "")
		require.NoError(t, err)
		src.update(remove(1))
		synctest.Wait()
		require.Error(t, made.of(1)[0].ctx.Err(), "an open body does not count")
	})
}

func TestMemberDescribe(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		require.Equal(t, "fake       addr=10.0.0.1:80\n", layer.Describe(c.endpoint(1).Service).String())
	})
}

// While endpoints are removed, no concurrent call reaches a service after its context has
// ended.
func TestMemberCallDuringRemoval(t *testing.T) {
	const rounds = 300
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := newSource()
	var current atomic.Pointer[endpoint]
	var served, refused, late atomic.Int64
	mk := func(ctx context.Context, _ discover.Target) service {
		return layer.Func[string, *response](func(context.Context, string) (*response, error) {
			if ctx.Err() != nil {
				late.Add(1)
			}
			runtime.Gosched()
			if ctx.Err() != nil {
				late.Add(1)
			}
			served.Add(1)
			return body("x"), nil
		})
	}
	var all, callers sync.WaitGroup
	var enough atomic.Bool
	all.Go(func() {
		for ch := range discover.Endpoints(ctx, src, "web", mk) {
			for _, e := range ch.Added {
				current.Store(e)
			}
		}
	})
	for range 8 {
		callers.Go(func() {
			for !enough.Load() {
				if e := current.Load(); e != nil {
					if rsp, err := e.Service.Call(context.Background(), ""); err == nil {
						_ = rsp.Body.Close()
					} else if assert.ErrorIs(t, err, layer.ErrClosed) {
						refused.Add(1)
					}
				}
				runtime.Gosched()
			}
		})
	}
	for i := range rounds {
		src.update(replace(at(i)))
	}
	// The last endpoint stays.
	assert.Eventually(t, func() bool { return served.Load() > 0 }, time.Minute, time.Millisecond)
	enough.Store(true)
	callers.Wait()
	cancel()
	all.Wait()
	require.Zero(t, late.Load())
	require.Positive(t, served.Load())
}
