package layer_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// wire is a body like that of a transport. A Read fails when the context of the request has
// ended, even if bytes are buffered.
type wire struct {
	ctx    context.Context
	left   int
	closes *atomic.Int64
}

func (w *wire) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	if w.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), w.left, 4096)
	w.left -= n
	return n, nil
}

func (w *wire) Close() error { w.closes.Add(1); return nil }

// cristalhq/hedgedhttp#7, failsafe-go/failsafe-go#65 (under a retry) and
// go-resty/resty#1197: the context of the winner was canceled with that of the loser. Only
// 3 965 of 512 K bytes of its body could be read.
func TestHedgeWinnerBody(t *testing.T) {
	const size = 512 << 10
	for _, winner := range []int64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var n, closes atomic.Int64
			var ctxs sync.Map
			svc := layer.NewStack[int, *response]().
				With("retry", layer.Retry[int, *response](layer.RetryPolicy[int, *response]{})).
				With("hedge", layer.Hedge[int, *response](after[int](time.Second))).
				Service(layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
					i := n.Add(1)
					ctxs.Store(i, ctx)
					wait := 10 * time.Second
					if i == winner {
						wait = 2 * time.Second
					}
					_, err := answers(0, wait)(ctx)
					return &response{Body: &wire{ctx, size, &closes}}, err
				}))
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Minute) // it is read late
			winning, _ := ctxs.Load(winner)
			losing, _ := ctxs.Load(3 - winner)
			require.NoError(t, winning.(context.Context).Err())
			require.ErrorIs(t, losing.(context.Context).Err(), context.Canceled)

			read, err := io.Copy(io.Discard, rsp.Body)
			require.NoError(t, err)
			require.EqualValues(t, size, read)
			require.NoError(t, rsp.Body.Close())
			require.EqualValues(t, 1, closes.Load())
			require.Error(t, winning.(context.Context).Err(), "let go with the body")
		})
	}
}

// failsafe-go/failsafe-go#141: without a budget for the copy, the first attempt was
// canceled as well.
func TestHedgeWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := after[int](time.Second)
		policy.Budget = layer.NewBudget(0, -1, -1)
		var calls atomic.Int64
		svc := layer.Hedge[int, int](policy)(script{answers(1, time.Minute)}.service(&calls))
		got, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 1, got)
		require.Equal(t, [3]int64{0, 0, 1}, hedgeNode(svc))
	})
}

type upload struct {
	Method  string
	Body    io.ReadCloser
	GetBody func() (io.ReadCloser, error)
}

// uploads makes requests with bodies that can be made again, and records the bodies.
type uploads struct {
	text   string
	bodies []*source // the first one is that of the request
}

func (u *uploads) get() (io.ReadCloser, error) {
	u.bodies = append(u.bodies, &source{Reader: strings.NewReader(u.text)})
	return u.bodies[len(u.bodies)-1], nil
}

func (u *uploads) request(method string) *upload {
	body, _ := u.get()
	return &upload{method, body, u.get}
}

// source is a request body that counts its ends.
type source struct {
	io.Reader
	closes atomic.Int64
}

func (s *source) Close() error { s.closes.Add(1); return nil }

// go-resty/resty#1211: both attempts read from one body, and each got a part of it.
func TestHedgeSeparateRequestBodies(t *testing.T) {
	content := strings.Repeat("content of the upload ", 100)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		var bodies atomic.Int64
		svc := layer.Hedge[*upload, int](after[*upload](time.Second))(
			layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
				defer req.Body.Close()
				data, err := io.ReadAll(req.Body)
				if bodies.Add(1) == 1 {
					time.Sleep(2 * time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, string(data))
				return int(bodies.Load()), err
			}))
		for _, method := range []string{"PUT", "POST"} {
			got = nil
			bodies.Store(0)
			kept := &source{Reader: strings.NewReader(content)}
			_, err := svc.Call(t.Context(), &upload{method, kept, nil})
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.EqualValues(t, 1, kept.closes.Load())
			if method == "PUT" {
				require.Equal(t, []string{content, content}, got)
			} else {
				require.Equal(t, []string{content}, got, "a POST is not sent twice")
			}
		}
	})
}

func TestHedgeLargeRequestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := after[*upload](time.Second)
		policy.MaxBodyBytes = 10
		svc := layer.Hedge[*upload, int](policy)(
			layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
				data, err := io.ReadAll(req.Body)
				time.Sleep(time.Minute)
				return len(data), errors.Join(err, req.Body.Close())
			}))
		body := &source{Reader: strings.NewReader(strings.Repeat("x", 5000))}
		n, err := svc.Call(t.Context(), &upload{"PUT", body, nil})
		require.NoError(t, err)
		require.Equal(t, 5000, n)
		require.Equal(t, [3]int64{0, 0, 1}, hedgeNode(svc))
		require.EqualValues(t, 1, body.closes.Load())
	})
}

// A service closes the body of a request that it takes. The body of a rejected
// request stays open, unless another attempt was sent.
func TestHedgeRequestBodies(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		first, second error
		closes        int64
	}{
		"both taken":      {nil, nil, 1},
		"copy rejected":   {nil, layer.ErrNotReady, 1},
		"first rejected":  {layer.ErrNotReady, nil, 1},
		"first, 2nd fail": {layer.ErrNotReady, errSecond, 1},
		"both rejected":   {layer.ErrNotReady, layer.ErrNotReady, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				svc := layer.Hedge[*upload, int](after[*upload](s))(
					layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
						err := c.first
						if n.Add(1) == 1 {
							time.Sleep(2 * s)
						} else {
							err = c.second
						}
						if !errors.Is(err, layer.ErrNotReady) {
							_, _ = io.ReadAll(req.Body)
							_ = req.Body.Close()
						}
						return 1, err
					}))
				sent := &uploads{text: "x"}
				_, err := svc.Call(t.Context(), sent.request("PUT"))
				require.Equal(t, c.closes == 0, errors.Is(err, layer.ErrNotReady))
				time.Sleep(time.Minute)
				require.Len(t, sent.bodies, 2)
				require.Equal(t, c.closes > 0, sent.bodies[0].closes.Load() > 0)
				require.Positive(t, sent.bodies[1].closes.Load())
			})
		})
	}
}

// An attempt that fails without being sent leaves its body open, and the hedge
// closes it.
func TestHedgeClosesUnsentBody(t *testing.T) {
	const s = time.Second
	take := func(ctx context.Context, d time.Duration, req *upload) (int, error) {
		_, _ = io.ReadAll(req.Body)
		defer req.Body.Close()
		return answers(1, d)(ctx)
	}
	leave := func(ctx context.Context, d time.Duration, _ *upload) (int, error) { return fails(errFirst, d)(ctx) }
	late := func(_ context.Context, d time.Duration, _ *upload) (int, error) {
		time.Sleep(d) // and ignores its context
		return 0, errFirst
	}
	panics := func(_ context.Context, d time.Duration, _ *upload) (int, error) {
		time.Sleep(d)
		panic(errSecond)
	}
	takesAndPanics := func(_ context.Context, d time.Duration, req *upload) (int, error) {
		_ = req.Body.Close()
		return panics(nil, d, nil)
	}
	type leg func(context.Context, time.Duration, *upload) (int, error)
	for name, c := range map[string]struct {
		first, second leg
		took          [2]time.Duration
		fails, panics bool
	}{
		"the first, lost":               {leave, take, [2]time.Duration{10 * s, s}, false, false},
		"the first, failed":             {leave, take, [2]time.Duration{2 * s, 3 * s}, false, false},
		"the copy, lost":                {take, leave, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, lost, later":         {take, late, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, lost, panics":        {take, panics, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, failed":              {take, leave, [2]time.Duration{3 * s, s}, false, false},
		"the copy, the first panics":    {takesAndPanics, leave, [2]time.Duration{3 * s, s}, false, true},
		"the copy, as the first panics": {takesAndPanics, late, [2]time.Duration{3 * s, 10 * s}, false, true},
		"the copy, which panics":        {take, panics, [2]time.Duration{10 * s, s}, false, false},
		"the copy, both panic":          {takesAndPanics, panics, [2]time.Duration{3 * s, s}, false, true},
		"both":                          {leave, leave, [2]time.Duration{3 * s, s}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				svc := layer.Hedge[*upload, int](after[*upload](s))(
					layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
						if n.Add(1) == 1 {
							return c.first(ctx, c.took[0], req)
						}
						return c.second(ctx, c.took[1], req)
					}))
				sent := &uploads{text: "x"}
				var err error
				call := func() { _, err = svc.Call(t.Context(), sent.request("PUT")) }
				if c.panics {
					require.PanicsWithValue(t, errSecond, call)
				} else {
					call()
				}
				if c.fails {
					require.ErrorIs(t, err, errFirst)
					_ = sent.bodies[0].Close() // as the caller does
				} else {
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				require.EqualValues(t, 2, n.Load())
				for _, body := range sent.bodies {
					require.Positive(t, body.closes.Load())
				}
			})
		})
	}
}

// A copy that fails before the first attempt has a response leaves no body or context open.
func TestHedgeFailedCopy(t *testing.T) {
	for name, first := range map[string]func() (*breakerReply, error){
		"well":   func() (*breakerReply, error) { return &breakerReply{Status: 200}, nil },
		"badly":  func() (*breakerReply, error) { return &breakerReply{Status: 500}, nil },
		"panics": func() (*breakerReply, error) { panic(errFirst) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := newFallbackBody("it failed")
				var n atomic.Int64
				svc := layer.Hedge[int, *breakerReply](after[int](time.Second), layer.WithClassifier(breakerStatus))(
					layer.Func[int, *breakerReply](func(context.Context, int) (*breakerReply, error) {
						if n.Add(1) > 1 {
							return &breakerReply{500, failed}, nil
						}
						time.Sleep(3 * time.Second)
						return first()
					}))
				func() {
					defer func() { _ = recover() }()
					_, err := svc.Call(t.Context(), 1)
					require.NoError(t, err)
				}()
				require.EqualValues(t, 2, n.Load())
				require.EqualValues(t, 1, failed.closed.Load())
			})
		})
	}
}

// moonrhythm/parapet#223: retries and hedges that multiply.
func TestHedgeUnderRetry(t *testing.T) {
	const (
		requests = 1000
		ratio    = 0.2
		reserve  = 10 * 1 // in ten seconds
	)
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(10*time.Second, ratio, 1)
		policy := after[int](10 * time.Millisecond)
		policy.Budget = budget
		var calls atomic.Int64
		again := layer.WithClassifier(func(layer.Outcome[int]) layer.Class { return layer.Retryable })
		storm := layer.NewStack[int, int]().
			With("retry", layer.Retry(layer.RetryPolicy[int, int]{Budget: budget, MaxAttempts: 5}, again)).
			With("hedge", layer.Hedge(policy, again)).
			Service(layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
				calls.Add(1)
				if req%2 == 0 { // too soon for a copy
					return fails(errFirst, 5*time.Millisecond)(ctx)
				}
				return fails(errFirst, 20*time.Millisecond)(ctx)
			}))
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				_, err := storm.Call(t.Context(), i)
				assert.ErrorIs(t, err, errFirst)
			})
			time.Sleep(9 * time.Millisecond)
		}
		wg.Wait()
		require.LessOrEqual(t, calls.Load(), int64(requests*(1+ratio)+reserve))
		require.Greater(t, calls.Load(), int64(requests*1.1), "there were retries and hedges")
		hedges := layer.Describe(storm).Next.State.Get("sent").(int64)
		retries := layer.Describe(storm).State.Get("retries").(int64)
		require.Equal(t, calls.Load(), requests+hedges+retries)
		require.Positive(t, hedges)
		require.Positive(t, retries)
	})
}

// With a budget of its own, a hedge deposits into it, also below a retry.
func TestHedgeDepositsOnce(t *testing.T) {
	for name, retry := range map[string]layer.RetryPolicy[int, int]{
		"shared": {Budget: layer.NewBudget(time.Minute, 1, -1)},
		"own":    {Budget: layer.NewBudget(time.Minute, 1, -1)},
		"alone":  {MaxAttempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := after[int](time.Hour)
				policy.Budget = layer.NewBudget(time.Minute, 1, -1)
				if name == "shared" {
					retry.Budget = policy.Budget
				}
				svc := layer.Retry[int, int](retry)(layer.Hedge[int, int](policy)(layer.Func[int, int](echo)))
				for range 16 {
					_, err := svc.Call(t.Context(), 1)
					require.NoError(t, err)
				}
				require.Equal(t, 16, policy.Budget.Balance())
			})
		})
	}
}

// The caller gets one response, every response is closed, every context ends, and at
// most one copy is sent for each request.
func TestHedgeStorm(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(n)
			}
			var ctxs []context.Context
			var opened int64
			var closes atomic.Int64
			policy := after[int](5 * time.Millisecond)
			policy.Budget = layer.NewBudget(time.Second, 10, 1000)
			svc := layer.Hedge[int, *response](policy)(layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				mu.Lock()
				ctxs = append(ctxs, ctx)
				mu.Unlock()
				time.Sleep(time.Duration(draw(20)) * time.Millisecond)
				switch draw(6) {
				case 0:
					return nil, errFirst
				case 1:
					return nil, layer.ErrNotReady
				case 2:
					panic(errSecond)
				}
				mu.Lock()
				opened++
				mu.Unlock()
				return &response{Body: &wire{ctx, 10, &closes}}, nil
			}))
			const requests = 50
			var wg sync.WaitGroup
			for range requests {
				wg.Go(func() {
					defer func() {
						if p := recover(); p != nil {
							assert.Equal(t, errSecond, p)
						}
					}()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if draw(4) == 0 {
						patience := time.Duration(draw(20)) * time.Millisecond
						go func() {
							time.Sleep(patience)
							cancel()
						}()
					}
					rsp, err := svc.Call(ctx, 1)
					if err != nil {
						return
					}
					time.Sleep(time.Duration(draw(5)) * time.Millisecond)
					_, err = io.ReadAll(rsp.Body)
					assert.True(t, err == nil || ctx.Err() != nil, err)
					_ = rsp.Body.Close()
				})
			}
			wg.Wait()
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, opened, closes.Load(), "a response was left open, or closed twice")
			assert.LessOrEqual(t, len(ctxs), 2*requests)
			for _, ctx := range ctxs {
				assert.Error(t, ctx.Err())
			}
		})
	}
}
