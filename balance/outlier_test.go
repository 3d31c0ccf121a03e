package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// roundRobin gives all endpoints as many requests, so that only outlier detection
// matters.
func roundRobin(e balance.OutlierDetection) []option {
	return []option{
		balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin(), Penalty: -1, OutlierDetection: e}),
		balance.WithClassifier(layer.DefaultClassifier[*response]),
	}
}

// fail makes a server fail while f returns true.
func (s *server) fail(f func() bool) *server {
	s.serve = func(context.Context, string) (*response, error) {
		if f() {
			return nil, errBroken
		}
		return body("x"), nil
	}
	return s
}

func always() bool { return true }

func never() bool { return false }

// sends calls the pool n times and returns how many were rejected.
func (p *pool) sends(t *testing.T, n int) (rejected int) {
	t.Helper()
	for range n {
		if err := p.send(t.Context()); errors.Is(err, layer.ErrNotReady) {
			rejected++
		}
	}
	return rejected
}

func (p *pool) states(ss []*server) string {
	states := make([]string, len(ss))
	for i, s := range ss {
		states[i], _ = p.of(s).Get("state").(string)
	}
	return strings.Join(states, "/")
}

func (p *pool) ejection(t *testing.T, s *server) *balance.EjectedError {
	t.Helper()
	var why *balance.EjectedError
	for _, e := range p.Snapshot() {
		if e.ID.Addr == s.addr {
			require.ErrorAs(t, e.Reason, &why)
		}
	}
	require.NotNil(t, why)
	return why
}

func TestOutlierConsecutiveFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 3})...), servers(3)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 6)
		assert.Equal(t, "ready/ready/ready", p.states(ss))
		p.sends(t, 1)
		require.Equal(t, "ejected/ready/ready", p.states(ss))
		assert.Zero(t, p.sends(t, 30))
		assert.EqualValues(t, 3, ss[0].calls.Load(), "no more requests")

		why := p.ejection(t, ss[0])
		assert.Equal(t, "3 failures in a row", why.Cause)
		assert.Equal(t, 1, why.Times)
		require.ErrorIs(t, why, layer.ErrNotReady)
		assert.Equal(t, "ejected until "+why.Until.UTC().Format(time.RFC3339)+": 3 failures in a row", p.of(ss[0]).Get("reason"))
		left := time.Until(why.Until)
		assert.True(t, 27*time.Second <= left && left <= 30*time.Second, left)
		d := p.Describe().State
		assert.Equal(t, []any{1, uint64(1), uint64(0)}, []any{d.Get("ejected"), d.Get("ejections"), d.Get("ejections_skipped")})

		ss[0].fail(never)
		time.Sleep(left - 1)
		synctest.Wait()
		assert.Equal(t, "ejected/ready/ready", p.states(ss))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, "ready/ready/ready", p.states(ss))
		assert.Nil(t, p.of(ss[0]).Get("reason"))
		p.sends(t, 9)
		assert.EqualValues(t, 6, ss[0].calls.Load())
	})
}

// A throttled response does not count for consecutive failures and does not end a row. It
// is a failure in the comparison.
func TestOutlierThrottled(t *testing.T) {
	errThrottled := errors.New("too many requests")
	throttled := func(o layer.Outcome[*response]) layer.Class {
		if errors.Is(o.Err, errThrottled) {
			return layer.Throttled
		}
		return layer.DefaultClassifier(o)
	}
	for name, tt := range map[string]struct {
		ejection balance.OutlierDetection
		failures int // of each three responses
		state    string
	}{
		"in a row":                  {balance.OutlierDetection{ConsecutiveFailures: 5}, 0, "ready"},
		"between failures in a row": {balance.OutlierDetection{ConsecutiveFailures: 5}, 1, "ejected"},
		"compared":                  {balance.OutlierDetection{Interval: time.Second, RequestVolume: 20}, 0, "ejected"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, append(roundRobin(tt.ejection), balance.WithClassifier(throttled))...), servers(6)
				n := 0
				ss[0].serve = func(context.Context, string) (*response, error) {
					if n++; n%3 < tt.failures {
						return nil, errBroken
					}
					return nil, errThrottled
				}
				p.add(ss...)
				p.sends(t, 400)
				time.Sleep(1500 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, tt.state+"/ready/ready/ready/ready/ready", p.states(ss))
			})
		})
	}
}

func TestOutlierSuccessEndsRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 3})...), servers(3)
		n := 0
		ss[0].fail(func() bool { n++; return n%3 != 0 })
		p.add(ss...)
		p.sends(t, 300)
		assert.Equal(t, "ready/ready/ready", p.states(ss))
	})
}

func TestOutlierDisabled(t *testing.T) {
	policy := balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 1, Interval: time.Second}}
	for name, opts := range map[string][]option{
		"no failures": {balance.WithPolicy[*response](policy), neverFailing()},
		"no rule":     roundRobin(balance.OutlierDetection{BaseEjectionTime: time.Hour}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, opts...), servers(5)
				ss[0].fail(always)
				p.add(ss...)
				p.sends(t, 1000)
				time.Sleep(2 * time.Second)
				assert.Equal(t, 5, p.Describe().State.Get("ready"))
				assert.Zero(t, p.Describe().State.Get("ejections"))
			})
		})
	}
}

func TestOutlierEjectionTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 2, MaxEjectionTime: 100 * time.Second})...), servers(3)
		ss[0].fail(always)
		p.add(ss...)
		again := func() *balance.EjectedError {
			p.sends(t, 6)
			return p.ejection(t, ss[0])
		}
		for i, want := range []time.Duration{30, 60, 90, 100, 100} {
			why := again()
			assert.Equal(t, i+1, why.Times)
			assert.LessOrEqual(t, time.Until(why.Until), want*time.Second)
			assert.GreaterOrEqual(t, time.Until(why.Until), want*time.Second*9/10)
			time.Sleep(time.Until(why.Until))
			synctest.Wait()
			require.Equal(t, "ready", p.of(ss[0]).Get("state"))
		}
		ss[0].fail(never)
		p.sends(t, 6)
		time.Sleep(100 * time.Second)
		ss[0].fail(always)
		assert.Equal(t, 6, again().Times, "after MaxEjectionTime")
		ss[0].fail(never)
		time.Sleep(100*time.Second + 101*time.Second)
		ss[0].fail(always)
		assert.Equal(t, 1, again().Times, "after more than MaxEjectionTime")
	})
}

// Responses in flight continue during an ejection and do not count after it.
func TestOutlierInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 2})...), servers(2)
		pr, pw := io.Pipe()
		ss[0].serve = func(context.Context, string) (*response, error) { return &response{pr}, nil }
		p.add(ss...)
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		ss[0].fail(always)
		p.sends(t, 5)
		require.Equal(t, "ejected/ready", p.states(ss))
		assert.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
		go func() { _, _ = io.WriteString(pw, "late"); _ = pw.CloseWithError(errBroken) }()
		text, err := io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, errBroken)
		assert.Equal(t, "late", string(text))
		assert.Zero(t, p.of(ss[0]).Get("in_flight"))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		p.sends(t, 2)
		assert.Equal(t, "ready/ready", p.states(ss), "one failure since its return")
		p.sends(t, 2)
		assert.Equal(t, "ejected/ready", p.states(ss))
	})
}

// leaving returns contexts that are canceled after d.
func leaving(d time.Duration) func(int) (context.Context, context.CancelFunc) {
	return func(int) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(d, cancel)
		return ctx, cancel
	}
}

// Missed deadlines eject an endpoint that hangs, by either rule.
func TestOutlierHangs(t *testing.T) {
	for name, e := range map[string]balance.OutlierDetection{
		"in a row": {ConsecutiveFailures: 3}, "compared": {Interval: 10 * time.Second, RequestVolume: 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(e)...), servers(10)
				for _, s := range ss {
					s.after(func() time.Duration { return 10 * time.Millisecond })
				}
				ss[0].hang()
				p.add(ss...)
				shares := p.load(t, 6000, 10*time.Millisecond, ss, allowing(time.Second))
				assert.Less(t, shares[0], 0.06, "of a tenth")
				assert.NotZero(t, p.Describe().State.Get("ejections"))
				for _, s := range ss[1:] {
					assert.Equal(t, "ready", p.of(s).Get("state"))
				}
			})
		})
	}
}

// A few missed deadlines eject an endpoint that hangs, also short ones in comparison with
// the longest latencies of its peers.
func TestOutlierShortDeadlines(t *testing.T) {
	const ms = time.Millisecond
	for name, deadline := range map[string]func() time.Duration{
		"0.5 s to 1 s": func() time.Duration { return 500*ms + rand.N(500*ms) },
		"0.5 s":        func() time.Duration { return 500 * ms },
		"100 ms":       func() time.Duration { return 100 * ms },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 5})...), servers(10)
				for _, s := range ss {
					s.after(func() time.Duration { return time.Duration(rand.ExpFloat64() * float64(10*ms)) })
				}
				p.add(ss...)
				caller := func(int) (context.Context, context.CancelFunc) {
					return context.WithTimeout(context.Background(), deadline())
				}
				p.load(t, 10_000, 5*ms, ss, caller)
				require.Zero(t, p.Describe().State.Get("ejections"))
				ss[0].hang()
				before := ss[0].calls.Load()
				p.load(t, 2000, 5*ms, ss, caller)
				require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
				require.Less(t, ss[0].calls.Load()-before, int64(50), "the requests of about a second")
				require.EqualValues(t, 1, p.Describe().State.Get("ejections"))
			})
		})
	}
}

// Canceled requests and deadlines that no endpoint meets do not count.
func TestOutlierCanceled(t *testing.T) {
	const usual = 10 * time.Millisecond
	for name, tt := range map[string]struct {
		slow   time.Duration // latency of one endpoint
		caller func(int) (context.Context, context.CancelFunc)
	}{
		"deadline below the median": {usual, allowing(usual / 2)},
		"canceled":                  {time.Minute, leaving(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 2, Interval: time.Second, RequestVolume: 5})...), servers(5)
				for _, s := range ss {
					s.after(func() time.Duration { return usual })
				}
				p.add(ss...)
				p.load(t, 500, usual, ss, patient)
				ss[0].after(func() time.Duration { return tt.slow })
				p.load(t, 2000, usual, ss, tt.caller)
				assert.Equal(t, "ready/ready/ready/ready/ready", p.states(ss))
				assert.Zero(t, p.Describe().State.Get("ejections"))
			})
		})
	}
}

// From the seventh in a row on, missed deadlines below twice the median latency count.
func TestOutlierRowOfShortDeadlines(t *testing.T) {
	const usual = 10 * time.Millisecond
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(5)
		for _, s := range ss {
			s.after(func() time.Duration { return usual })
		}
		p.add(ss...)
		p.load(t, 500, usual, ss, patient)
		ss[0].hang()
		p.load(t, 30, usual, ss, allowing(usual*3/2))
		require.Equal(t, "ready", p.of(ss[0]).Get("state"))
		p.load(t, 5, usual, ss, allowing(usual*3/2))
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
	})
}

// A missed deadline that the classifier calls a success counts neither as a failure nor
// as a good response.
func TestOutlierDeadlineClassified(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{
			Picker: balance.RoundRobin(), Penalty: -1, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 2},
		}), balance.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
			if errors.Is(o.Err, errBroken) {
				return layer.Failure
			}
			return layer.Success
		})), servers(2)
		p.add(ss...)
		p.sends(t, 100)
		hole := func() {
			ss[0].hang()
			p.load(t, 4, time.Millisecond, ss, allowing(10*time.Second))
		}
		hole()
		require.Equal(t, "ready/ready", p.states(ss))
		ss[0].fail(always)
		p.sends(t, 2)
		hole()
		require.Equal(t, "ready/ready", p.states(ss), "one failure")
		ss[0].fail(always)
		p.sends(t, 2)
		require.Equal(t, "ejected/ready", p.states(ss), "two without a good response between them")
	})
}

// Headers that are a failure count although the request is canceled before the first
// byte, as a losing hedge is.
func TestOutlierFailedHeaders(t *testing.T) {
	for _, sample := range []balance.Sample{balance.SampleFirstByte, balance.SampleHeaders, balance.SampleEnd} {
		for name, penalty := range map[string]time.Duration{"penalty": 0, "none": -1} {
			t.Run(fmt.Sprint(sample, ", ", name), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var bad sync.Map
					p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{
						Picker: balance.RoundRobin(), Sample: sample, Penalty: penalty, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3},
					}), balance.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
						if _, failed := bad.Load(o.Response); failed {
							return layer.Failure
						}
						return layer.DefaultClassifier(o)
					})), servers(4)
					p.add(ss...)
					for _, s := range ss {
						s.after(func() time.Duration { return 100 * time.Millisecond })
					}
					p.sends(t, 40)
					ss[0].serve = func(context.Context, string) (*response, error) {
						rsp := &response{&lasting{}}
						bad.Store(rsp, true)
						return rsp, nil
					}
					for range 3 * len(ss) {
						ctx, cancel := context.WithCancel(t.Context())
						_, err := p.Call(ctx, "")
						require.NoError(t, err)
						cancel()
						synctest.Wait()
					}
					require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
					require.Positive(t, p.state(ss[0]).ErrorRate)
				})
			})
		}
	}
}

// A body that is canceled, or ends at the deadline, is neither good nor bad, so that other
// failures still eject the endpoint. A body that is closed early is as good as its headers.
func TestOutlierCanceledBody(t *testing.T) {
	for name, tt := range map[string]struct {
		leave func(ctx context.Context, cancel func(), rsp *response)
		state string
	}{
		"canceled":        {func(_ context.Context, cancel func(), _ *response) { cancel() }, "ejected"},
		"at its deadline": {func(ctx context.Context, _ func(), _ *response) { <-ctx.Done() }, "ejected"},
		"closed":          {func(_ context.Context, cancel func(), rsp *response) { cancel(); _ = rsp.Body.Close() }, "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 3})...), servers(4)
				n := 0 // requests to the first one
				ss[0].serve = func(ctx context.Context, _ string) (*response, error) {
					n++
					r, w := io.Pipe()
					left := n%3 == 0
					go func() {
						_, _ = io.WriteString(w, "x")
						if left {
							<-ctx.Done()
						}
						_ = w.CloseWithError(errBroken)
					}()
					return &response{r}, nil
				}
				p.add(ss...)
				for range 5 * len(ss) {
					before := n
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					rsp, err := p.Call(ctx, "")
					require.NoError(t, err)
					_, err = rsp.Body.Read(make([]byte, 1))
					require.NoError(t, err)
					if n > before && n%3 == 0 {
						tt.leave(ctx, cancel, rsp)
					}
					_, _ = io.Copy(io.Discard, rsp.Body)
					_ = rsp.Body.Close()
					cancel()
					synctest.Wait()
				}
				assert.Equal(t, tt.state, p.of(ss[0]).Get("state"))
			})
		})
	}
}

func TestOutlierInterval(t *testing.T) {
	for name, tt := range map[string]struct {
		e        balance.OutlierDetection
		n        int
		requests int           // for each endpoint
		goodOf   func(int) int // good responses of 1000, by endpoint
		out      int           // ejected endpoints
	}{
		"half of one":        {balance.OutlierDetection{}, 10, 200, except(500, 1), 1},
		"all of one of five": {balance.OutlierDetection{}, 5, 100, except(0, 1), 1},
		"all of one of four": {balance.OutlierDetection{}, 4, 200, except(0, 1), 0},
		"too few requests":   {balance.OutlierDetection{}, 10, 99, except(0, 1), 0},
		"all equal":          {balance.OutlierDetection{}, 10, 200, except(500, 10), 0},
		"envoy#18752":        {balance.OutlierDetection{}, 10, 1000, except(999, 1), 0},
		"envoy#37723":        {balance.OutlierDetection{}, 20, 300, except(990, 1), 0},
		"MinDifference":      {balance.OutlierDetection{MinDifference: 0.01}, 20, 300, except(970, 1), 1},
		"a tenth of one":     {balance.OutlierDetection{}, 10, 300, except(900, 1), 1},
		"two endpoints":      {balance.OutlierDetection{}, 12, 200, except(0, 2), 2},
		"MinReady":           {balance.OutlierDetection{MinReady: 0.95}, 12, 200, except(0, 2), 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				tt.e.Interval = 10 * time.Second
				p, ss := newPool(t, roundRobin(tt.e)...), servers(tt.n)
				for i, s := range ss {
					responses := 0
					s.fail(func() bool { // evenly distributed
						bad := 1000 - tt.goodOf(i)
						responses += bad
						if responses >= 1000 {
							responses -= 1000
							return true
						}
						return false
					})
				}
				p.add(ss...)
				p.sends(t, tt.n*tt.requests)
				assert.Equal(t, tt.n, p.Describe().State.Get("ready"), "before the end of the interval")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				assert.Equal(t, tt.out, strings.Count(p.states(ss), "ejected"))
				assert.Equal(t, tt.out, strings.Count(p.states(ss[:max(tt.out, 1)]), "ejected"), "the failing ones")
			})
		})
	}
}

// except is that all responses are good, but for the first k endpoints.
func except(good, k int) func(int) int {
	return func(i int) int {
		if i < k {
			return good
		}
		return 1000
	}
}

func TestOutlierIntervalCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{Interval: time.Second})...), servers(5)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 500)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, "success rate 0 of 100, mean 80.0 % of 5 endpoints", p.ejection(t, ss[0]).Cause)
	})
}

// An interval starts with no counts.
func TestOutlierIntervalCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{Interval: time.Second})...), servers(5)
		ss[0].fail(always)
		p.add(ss...)
		for range 5 {
			p.sends(t, 5*60)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		assert.Equal(t, 5, p.Describe().State.Get("ready"))
	})
}

// istio/istio#20135, envoyproxy/envoy#2463: all endpoints are ejected.
func TestOutlierMinReady(t *testing.T) {
	for name, tt := range map[string]struct {
		n     int
		floor float64
		left  int
	}{
		"one":           {1, 0, 1},
		"two":           {2, 0, 1},
		"half of three": {3, 0, 2},
		"half of ten":   {10, 0, 5},
		"nearly 0":      {10, 1e-9, 1},
		"tenth":         {10, 0.1, 1},
		"0.07 of 100":   {100, 0.07, 7},
		"all":           {10, 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, MinReady: tt.floor})...), servers(tt.n)
				for _, s := range ss {
					s.fail(always)
				}
				p.add(ss...)
				assert.Zero(t, p.sends(t, 5*tt.n), "a failure is not a rejection")
				d := p.Describe().State
				assert.Equal(t, tt.left, d.Get("ready"))
				assert.EqualValues(t, tt.n-tt.left, d.Get("ejections"))
				assert.EqualValues(t, 5*tt.n-(tt.n-tt.left), d.Get("ejections_skipped"), "each other failure")
			})
		})
	}
}

// If all other endpoints reject or are removed, the ejected ones return.
func TestOutlierNoneReady(t *testing.T) {
	for name, end := range map[string]func(p *pool, others []*server){
		"unready": func(_ *pool, others []*server) {
			for _, s := range others {
				s.open(false)
			}
		},
		"removed": func(p *pool, others []*server) { p.remove(others...) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(6)
				p.add(ss...)
				for _, s := range ss[:3] {
					s.fail(always)
					p.sends(t, 6)
					s.fail(never)
				}
				require.Equal(t, "ejected/ejected/ejected/ready/ready/ready", p.states(ss))
				end(p, ss[3:])
				assert.Zero(t, p.sends(t, 6), "rejected")
				assert.Equal(t, "ready/ready/ready", p.states(ss[:3]))
				require.NoError(t, layer.Poll(p.balancer))
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Equal(t, "ready/ready/ready", p.states(ss[:3]), "after the time of the ejection")
				assert.Zero(t, p.Describe().State.Get("ejected"))
			})
		})
	}
}

// While the other endpoints are busy, an endpoint that breakers or ejections keep out gets no
// requests that the others reject.
func TestMinReadyOverload(t *testing.T) {
	type service = layer.Service[string, *response]
	breaker := layer.Breaker[string, *response](layer.BreakerPolicy{})
	limit := layer.Limit[string, *response](10)
	for name, tt := range map[string]struct {
		stack layer.Layer[string, *response]
		opts  []option
	}{
		"breaker":              {func(s service) service { return breaker(limit(s)) }, []option{balance.WithClassifier(layer.DefaultClassifier[*response])}},
		"breaker, round robin": {func(s service) service { return breaker(limit(s)) }, roundRobin(balance.OutlierDetection{})},
		"ejection":             {limit, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 5})},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, tt.opts...), servers(4)
				c := change{State: resolve.StateExists}
				for _, s := range ss {
					e := s.after(func() time.Duration { return 100 * time.Millisecond }).endpoint()
					e.Service = tt.stack(s)
					c.Added = append(c.Added, e)
				}
				ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
				p.apply(c)
				shares := p.load(t, 6000, time.Second/600, ss, patient) // the others can serve 300 a second
				assert.Less(t, shares[0], 0.01)
				assert.Greater(t, shares[1]+shares[2]+shares[3], 0.45)
			})
		})
	}
}

// If the last busy endpoint becomes idle and still rejects requests, the ejected ones return.
func TestMinReadyNoneBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
		p.add(ss...)
		ss[0].fail(always)
		p.sends(t, 2)
		ss[1].after(func() time.Duration { return time.Second })
		go func() { _ = p.send(context.Background()) }()
		synctest.Wait()
		ss[1].open(false)
		_, err := p.Call(t.Context(), "")
		require.EqualError(t, err, "balance web 10.0.0.2:80: not ready: 0 of 2 endpoints ready: server: not ready: shut")
		require.Equal(t, "ejected/unready", p.states(ss))
		waited := make(chan error)
		go func() { waited <- p.Ready(context.Background()) }()
		require.NoError(t, <-waited)
		require.Equal(t, "ready/unready", p.states(ss))
	})
}

// A failing endpoint is ejected also if it is at its limit whenever a response ends.
func TestOutlierBusy(t *testing.T) {
	const interval = 10*time.Second + time.Millisecond // no response ends at this time
	for name, detection := range map[string]balance.OutlierDetection{
		"consecutive": {ConsecutiveFailures: 5}, "success rate": {Interval: interval, RequestVolume: 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(detection)...), servers(6)
				c := change{State: resolve.StateExists}
				for i, s := range ss {
					s.serve = func(context.Context, string) (*response, error) {
						if time.Sleep(100 * time.Millisecond); i == 0 {
							return nil, errBroken
						}
						return body(""), nil
					}
					e := s.endpoint()
					e.Service = layer.Limit[string, *response](1)(s)
					c.Added = append(c.Added, e)
				}
				p.apply(c)
				p.load(t, 1200, time.Second/100, ss, patient) // the endpoints can serve 60 a second
				assert.Equal(t, "ejected/", p.states(ss)[:8])
			})
		})
	}
}

// Concurrent failures, rejections, changes and ejections. At no time is an endpoint
// ejected while none is ready, and all return in the end.
func TestOutlierConcurrent(t *testing.T) {
	b, apply := of(t, 10,
		balance.WithPolicy[int](balance.Policy{Picker: balance.RoundRobin(), Penalty: -1, OutlierDetection: balance.OutlierDetection{
			ConsecutiveFailures: 2, Interval: time.Millisecond, RequestVolume: 1, BaseEjectionTime: time.Millisecond, MaxEjectionTime: 2 * time.Millisecond,
		}}),
		balance.WithClassifier(layer.DefaultClassifier[int]))
	var shut atomic.Bool
	c := intChange{State: resolve.StateExists}
	for i := range 10 {
		c.Removed = append(c.Removed, intEndpoint(i))
		e := intEndpoint(i)
		e.ID.Addr = newServer(100 + i).addr
		limit := layer.Limit[int, int](2)(layer.Func[int, int](func(context.Context, int) (int, error) {
			if shut.Load() || i < 7 && rand.Uint32()%2 == 0 {
				return 0, errBroken
			}
			return 0, nil
		}))
		e.Service = limit
		c.Added = append(c.Added, e)
	}
	apply(c)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				if _, err := b.Call(context.Background(), 0); errors.Is(err, layer.ErrNotReady) {
					waitReady(t, b)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 300 {
			one := []*discover.Endpoint[int, int]{intEndpoint(i % 3)}
			apply(intChange{State: resolve.StateExists, Added: one})
			shut.Store(i%50 < 10)
			look(t, b)
			apply(intChange{State: resolve.StateExists, Removed: one})
		}
	})
	all.Wait()
	shut.Store(false)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		assert.Equal(t, 10, b.Describe().State.Get("ready"), "all endpoints return")
	}, 30*time.Second, time.Millisecond)
	assert.NotZero(t, b.Describe().State.Get("ejections"))
}

func look(t *testing.T, b *balance.Balancer[int, int]) {
	states := make(map[string]int)
	for _, s := range b.Snapshot() {
		states[s.State]++
	}
	if states["ejected"] > 0 {
		assert.Positive(t, states["ready"], fmt.Sprint(states))
	}
}

func TestOutlierAllocatesNothing(t *testing.T) {
	b, _ := of(t, 10, balance.WithPolicy[int](balance.Policy{OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5, Interval: time.Hour}}),
		balance.WithClassifier(layer.DefaultClassifier[int]))
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = b.Call(context.Background(), 1) }))
}

// The cost of outlier detection for a successful request.
func BenchmarkOutlierDetection(b *testing.B) {
	for _, bench := range []struct {
		name string
		e    balance.OutlierDetection
	}{
		{"none", balance.OutlierDetection{}},
		{"consecutive", balance.OutlierDetection{ConsecutiveFailures: 5}},
		{"interval", balance.OutlierDetection{Interval: 10 * time.Second}},
		{"both", balance.OutlierDetection{ConsecutiveFailures: 5, Interval: 10 * time.Second}},
	} {
		svc, _ := of(b, 100, balance.WithPolicy[int](balance.Policy{OutlierDetection: bench.e}), balance.WithClassifier(layer.DefaultClassifier[int]))
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
		b.Run(bench.name+"/par", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = svc.Call(context.Background(), 1)
				}
			})
		})
	}
}

// A change during an ejection takes effect after it.
func TestOutlierReturn(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(p *pool, s *server)
		want      any // its state; nil if removed
	}{
		"unchanged": {func(*pool, *server) {}, "ready"},
		"unready":   {func(_ *pool, s *server) { s.open(false) }, "unready"},
		"closed":    {func(_ *pool, s *server) { s.close() }, "closed"},
		"removed":   {func(p *pool, s *server) { p.remove(s) }, nil},
		"relabelled": {func(p *pool, s *server) {
			p.apply(change{Changed: []*endpoint{s.labelled(map[string]string{"zone": "b"})}})
		}, "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
				out := ss[0].fail(always)
				p.add(ss...)
				p.sends(t, 2)
				require.Equal(t, "ejected/ready", p.states(ss))
				tt.meanwhile(p, out)
				calls := out.calls.Load() + out.refused.Load()
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, tt.want, p.of(out).Get("state"))
				assert.Equal(t, calls, out.calls.Load()+out.refused.Load(), "no request during the ejection")
				assert.Zero(t, p.Describe().State.Get("ejected"))
				if tt.want == "unready" {
					out.open(true)
					synctest.Wait()
					assert.Equal(t, "ready", p.of(out).Get("state"))
				}
			})
		})
	}
}

func TestOutlierRemovedAndAdded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 2)
		p.remove(ss[0])
		p.add(ss[0])
		assert.Equal(t, "ready/ready", p.states(ss))
		p.sends(t, 2)
		assert.Equal(t, 1, p.ejection(t, ss[0]).Times)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, "ready/ready", p.states(ss))
	})
}

// Each endpoint has its own ejection time.
func TestOutlierReturnTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, MinReady: 0.1, BaseEjectionTime: 10 * time.Second})...), servers(9)
		p.add(ss...)
		start := time.Now()
		for _, s := range ss[:8] {
			s.fail(always)
			p.sends(t, 9)
			s.fail(never)
			time.Sleep(time.Second)
		}
		require.Equal(t, 8, p.Describe().State.Get("ejected"))
		for i, s := range ss[:8] {
			went := time.Duration(i) * time.Second
			until := p.ejection(t, s).Until.Sub(start)
			assert.True(t, went+9*time.Second <= until && until <= went+10*time.Second, until)
			time.Sleep(time.Until(start.Add(until)))
			synctest.Wait()
			assert.Equal(t, "ready", p.of(s).Get("state"))
			assert.LessOrEqual(t, 8-i-1-1, p.Describe().State.Get("ejected"))
		}
	})
}

// A returned endpoint is probed: it gets one request until the response, then two.
func TestOutlierReturnProbes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t,
			balance.WithPolicy[*response](balance.Policy{Penalty: -1, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 1}}),
			balance.WithClassifier(layer.DefaultClassifier[*response])), servers(2)
		p.add(ss...)
		p.sends(t, 40)
		ss[0].fail(always)
		p.sends(t, 20)
		require.Equal(t, "ejected/ready", p.states(ss))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "ready/ready", p.states(ss))
		for _, s := range ss {
			s.after(func() time.Duration { return time.Second })
		}
		held := func(n int) int64 {
			before := ss[0].calls.Load()
			for range n {
				go func() { _ = p.send(context.Background()) }()
				synctest.Wait()
			}
			return ss[0].calls.Load() - before
		}
		assert.EqualValues(t, 1, held(10))
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 2, held(20))
		time.Sleep(2 * time.Second)
	})
}

func TestOutlierBalancerEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, Interval: time.Second})...), servers(4)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 4)
		p.finish()
		assert.Empty(t, p.Snapshot())
		assert.Zero(t, p.Describe().State.Get("ejected"))
		time.Sleep(time.Minute)
		_, err := p.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrClosed)
	})
}

// seeded returns a reproducible source of random numbers.
func seeded() func() uint64 {
	var mu sync.Mutex
	source := rand.NewPCG(4, 2)
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint64()
	}
}

// outcome is the result of a minute with a hundred requests a second.
type outcome struct {
	failed, rejected, toBad float64 // shares
	leastReady              int
	ejections, skipped      uint64
}

func (o outcome) String() string {
	return fmt.Sprintf("%5.2f %% failed, %5.2f %% sent to failing endpoints, %d rejected; %d ejected, %d skipped, at least %d ready",
		100*o.failed, 100*o.toBad, int(o.rejected), o.ejections, o.skipped, o.leastReady)
}

// simulate sends the requests to ten endpoints, of which some fail a share of theirs.
func simulate(t *testing.T, bad int, share float64, policy balance.Policy) outcome {
	random := seeded()
	p, ss := newPool(t, balance.WithPolicy[*response](policy), balance.WithClassifier(layer.DefaultClassifier[*response]),
		balance.WithRand[*response](random)), servers(10)
	for _, s := range ss[:bad] {
		s.fail(func() bool { return float64(random()>>11)/(1<<53) < share })
	}
	p.add(ss...)
	o := outcome{leastReady: 10}
	const n = 6000
	for i := range n {
		err := p.send(t.Context())
		switch {
		case errors.Is(err, layer.ErrNotReady):
			o.rejected++
		case err != nil:
			o.failed += 1.0 / n
		}
		if i%20 == 0 {
			o.leastReady = min(o.leastReady, p.Describe().State.Get("ready").(int))
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, s := range ss[:bad] {
		o.toBad += float64(s.calls.Load()) / n
	}
	d := p.Describe().State
	o.ejections, _ = d.Get("ejections").(uint64)
	o.skipped, _ = d.Get("ejections_skipped").(uint64)
	return o
}

// The effect of outlier detection, without and with the penalty. The figures are logged.
func TestOutlierSimulation(t *testing.T) {
	rules := balance.OutlierDetection{ConsecutiveFailures: 5, Interval: 10 * time.Second}
	for _, tt := range []struct {
		name  string
		bad   int
		share float64
		most  float64 // the greatest share of failures with ejection only
		ready int     // the least number of ready endpoints
	}{
		{"one of ten fails half", 1, 0.5, 0.015, 9},
		{"one of ten fails", 1, 1, 0.005, 9},
		{"all fail", 10, 1, 1, 5},
		{"seven of ten fail", 7, 1, 0.45, 5}, // two of the five that MinReady leaves
	} {
		t.Run(tt.name, func(t *testing.T) {
			policies := map[string]balance.Policy{
				"nothing":  {Penalty: -1},
				"ejection": {Penalty: -1, OutlierDetection: rules},
				"penalty":  {},
				"both":     {OutlierDetection: rules},
			}
			got := make(map[string]outcome)
			for name, policy := range policies {
				bubble(t, func(t *testing.T) { got[name] = simulate(t, tt.bad, tt.share, policy) })
			}
			for _, name := range []string{"nothing", "ejection", "penalty", "both"} {
				t.Logf("%-8s %v", name, got[name])
				assert.Zero(t, got[name].rejected)
				assert.GreaterOrEqual(t, got[name].leastReady, tt.ready)
			}
			assert.InDelta(t, float64(tt.bad)/10*tt.share, got["nothing"].failed, 0.02)
			assert.LessOrEqual(t, got["ejection"].failed, tt.most+1e-6)
			assert.Equal(t, tt.ready, got["ejection"].leastReady)
			assert.LessOrEqual(t, got["both"].failed, got["penalty"].failed+0.001)
		})
	}
}

// modelEndpoint is the expected state of one endpoint.
type modelEndpoint struct {
	*server
	state    string // ready, unready, ejected
	bad      bool   // it fails
	row      int
	times    int
	returned time.Time
	until    time.Time // of the balancer, after it was checked
}

// detectionModel is outlier detection without concurrency.
type detectionModel struct {
	*pool
	policy             balance.OutlierDetection
	all                []*modelEndpoint
	out                []*modelEndpoint // the ejected ones
	next               int
	ejections, skipped uint64
}

func (m *detectionModel) count(state string) (n int) {
	for _, a := range m.all {
		if a.state == state {
			n++
		}
	}
	return n
}

func (m *detectionModel) minReady() int {
	return max(1, int(math.Ceil(m.policy.MinReady*float64(len(m.all)))))
}

func (m *detectionModel) readmit(a *modelEndpoint, state string) {
	a.state, a.row, a.returned = state, 0, time.Now()
	m.out = slices.DeleteFunc(m.out, func(o *modelEndpoint) bool { return o == a })
}

func (m *detectionModel) readmitAll() {
	if m.count("ready") > 0 {
		return
	}
	for len(m.out) > 0 {
		m.readmit(m.out[0], "ready")
	}
}

// call sends one request and updates the model.
func (m *detectionModel) call(rt *rapid.T) {
	type before struct{ calls, refused int64 }
	was := make(map[*modelEndpoint]before)
	for _, a := range m.all {
		was[a] = before{a.calls.Load(), a.refused.Load()}
	}
	could := m.count("ready") + len(m.out)
	err := m.send(context.Background())
	refused := err != nil && !errors.Is(err, errBroken)
	var refusers []*modelEndpoint
	for _, a := range m.all {
		if a.refused.Load() > was[a].refused {
			refusers = append(refusers, a)
		}
	}
	for tried := len(refusers); tried > 0; tried-- {
		i := slices.IndexFunc(refusers, func(a *modelEndpoint) bool { return a.state == "ready" })
		require.GreaterOrEqual(rt, i, 0, "an endpoint that was not ready got a request")
		refusers[i].state = "unready"
		refusers = slices.Delete(refusers, i, i+1)
		m.readmitAll()
	}
	for _, a := range m.all {
		if a.calls.Load() > was[a].calls {
			require.False(rt, refused)
			require.Equal(rt, "ready", a.state, "an ejected endpoint got a request")
			m.answered(a)
			return
		}
	}
	require.True(rt, refused)
	tried := 0
	for _, a := range m.all {
		tried += int(a.refused.Load() - was[a].refused)
	}
	require.True(rt, tried == could || tried == 5, "rejected after %d of %d endpoints", tried, could)
}

func (m *detectionModel) answered(a *modelEndpoint) {
	if !a.bad {
		a.row = 0
		return
	}
	if a.row++; a.row < m.policy.ConsecutiveFailures {
		return
	}
	a.row = 0
	if m.count("ready")-1 < m.minReady() {
		m.skipped++
		return
	}
	if time.Since(a.returned) > m.policy.MaxEjectionTime {
		a.times = 0
	}
	a.state, a.until = "ejected", time.Time{}
	a.times++
	m.out = append(m.out, a)
	m.ejections++
}

// settle waits for background changes.
func (m *detectionModel) settle() {
	synctest.Wait()
	for _, a := range m.all {
		if a.state == "unready" && a.isOpen.Load() {
			a.state = "ready"
		}
	}
}

func (m *detectionModel) update(rt *rapid.T) {
	c := change{State: resolve.StateExists}
	for range rapid.IntRange(0, 3).Draw(rt, "added") {
		a := &modelEndpoint{server: newServer(m.next), state: "ready"}
		a.fail(func() bool { return a.bad })
		if rapid.Bool().Draw(rt, "shut") {
			a.state = "unready"
			a.open(false)
		}
		m.next++
		m.all = append(m.all, a)
		c.Added = append(c.Added, a.endpoint())
	}
	m.all = slices.DeleteFunc(m.all, func(a *modelEndpoint) bool {
		gone := rapid.IntRange(0, 5).Draw(rt, "gone") == 0
		if gone {
			c.Removed = append(c.Removed, a.endpoint())
			m.out = slices.DeleteFunc(m.out, func(o *modelEndpoint) bool { return o == a })
		}
		return gone
	})
	m.readmitAll()
	m.apply(c)
}

func (m *detectionModel) check(rt *rapid.T) {
	m.settle()
	states := make(map[string]balance.EndpointState)
	for _, s := range m.Snapshot() {
		states[s.ID.Addr.String()] = s
	}
	for _, a := range m.all {
		s := states[a.addr.String()]
		require.Equal(rt, a.state, s.State, "%v", a.addr)
		if a.state != "ejected" {
			continue
		}
		why, ok := s.Reason.(*balance.EjectedError)
		require.True(rt, ok)
		require.Equal(rt, a.times, why.Times)
		require.Equal(rt, fmt.Sprintf("%d failures in a row", m.policy.ConsecutiveFailures), why.Cause)
		if term := min(m.policy.BaseEjectionTime*time.Duration(a.times), m.policy.MaxEjectionTime); a.until.IsZero() {
			a.until = why.Until
			require.LessOrEqual(rt, time.Until(a.until), term)
			require.GreaterOrEqual(rt, time.Until(a.until), term*9/10)
		}
		require.Equal(rt, a.until, why.Until)
	}
	d := m.Describe().State
	require.Equal(rt, m.ejections, d.Get("ejections"))
	require.Equal(rt, m.skipped, d.Get("ejections_skipped"))
	require.Equal(rt, len(m.out), d.Get("ejected"))
	if len(m.out) > 0 {
		require.Positive(rt, m.count("ready"))
	}
}

// pass sleeps for a random time, at most until the next return.
func (m *detectionModel) pass(rt *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second
	for _, a := range m.out {
		d = min(d, time.Until(a.until))
	}
	time.Sleep(d)
	for _, a := range slices.Clone(m.out) {
		if time.Until(a.until) <= 0 {
			m.readmit(a, map[bool]string{true: "ready", false: "unready"}[a.isOpen.Load()])
		}
	}
	m.settle()
}

func (m *detectionModel) one(rt *rapid.T) *modelEndpoint {
	if len(m.all) == 0 {
		rt.Skip("no endpoint")
	}
	return m.all[rapid.IntRange(0, len(m.all)-1).Draw(rt, "endpoint")]
}

// After any sequence of failures, rejections and changes the balancer has the states of
// the model.
func TestOutlierModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer cancel()
			e := balance.OutlierDetection{
				ConsecutiveFailures: rapid.IntRange(1, 3).Draw(rt, "consecutive"), BaseEjectionTime: 20 * time.Second, MaxEjectionTime: 70 * time.Second,
				MinReady: rapid.SampledFrom([]float64{0.125, 0.5, 0.75, 1}).Draw(rt, "min ready"),
			}
			m := &detectionModel{pool: newPoolIn(ctx, roundRobin(e)...), policy: e}
			rt.Repeat(map[string]func(*rapid.T){
				"update": m.update,
				"call":   m.call,
				"calls": func(rt *rapid.T) {
					for range 20 {
						m.call(rt)
						m.settle()
					}
				},
				"break": func(rt *rapid.T) { m.one(rt).bad = true },
				"mend":  func(rt *rapid.T) { m.one(rt).bad = false },
				"shut":  func(rt *rapid.T) { m.one(rt).open(false) },
				"open":  func(rt *rapid.T) { m.one(rt).open(true) },
				"pass":  m.pass,
				"":      m.check,
			})
			for len(m.out) > 0 {
				m.pass(rt)
				m.check(rt)
			}
		})
	})
}

// An endpoint that is ejected for failures in a row gets few requests as probes. The first success of one
// ends the ejection. Requests with affinity are no probes, because their keys belong to other endpoints.
func TestOutlierProbes(t *testing.T) {
	for name, tt := range map[string]struct {
		ctx    func(context.Context) context.Context
		probes bool
	}{
		"a request": {func(ctx context.Context) context.Context { return ctx }, true},
		"a retry":   {func(ctx context.Context) context.Context { return layer.WithAttempts(ctx, tried()) }, false},
		"a key":     {func(ctx context.Context) context.Context { return layer.WithAffinity(ctx, 1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t,
					balance.WithPolicy[*response](balance.Policy{
						Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5},
					}), balance.WithClassifier(layer.DefaultClassifier[*response])), servers(3)
				p.add(ss...)
				p.sends(t, 300)
				ss[0].fail(always)
				p.sends(t, 15)
				require.Equal(t, "ejected/ready/ready", p.states(ss))
				send := func(length time.Duration) (state string, after time.Duration) {
					begin := time.Now()
					for time.Since(begin) < length && p.states(ss[:1]) == "ejected" {
						_ = p.send(tt.ctx(t.Context()))
						time.Sleep(10 * time.Millisecond)
					}
					return p.states(ss[:1]), time.Since(begin)
				}
				before := ss[0].calls.Load()
				state, _ := send(20 * time.Second)
				require.Equal(t, "ejected", state)
				probes := ss[0].calls.Load() - before
				if !tt.probes {
					assert.Zero(t, probes)
					return
				}
				assert.True(t, probes > 5 && probes < 20, "%d probes", probes)
				ss[0].fail(never)
				state, after := send(5 * time.Second)
				assert.Equal(t, "ready", state)
				assert.Less(t, after, 3*time.Second)
			})
		})
	}
}

func tried() *layer.Attempts {
	attempts := new(layer.Attempts)
	attempts.Add(new(int))
	return attempts
}

// If all endpoints fail often, the ejections end, and others do not begin before BaseEjectionTime is over.
func TestOutlierStrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		detection := balance.OutlierDetection{ConsecutiveFailures: 3, BaseEjectionTime: 10 * time.Second}
		p, ss := newPool(t, roundRobin(detection)...), servers(3)
		p.add(ss...)
		send := func(n int) {
			for range n {
				_ = p.send(t.Context())
				time.Sleep(10 * time.Millisecond)
			}
		}
		send(30)
		ss[0].fail(always)
		send(9)
		require.Equal(t, "ejected/ready/ready", p.states(ss))
		for _, s := range ss {
			n := 0
			s.fail(func() bool { n++; return n%2 == 0 })
		}
		send(60)
		require.Equal(t, "ready/ready/ready", p.states(ss))
		for _, s := range ss {
			s.fail(never)
		}
		ss[0].fail(always)
		send(800)
		assert.Equal(t, "ready/ready/ready", p.states(ss))
		send(300)
		assert.Equal(t, "ejected/ready/ready", p.states(ss))
	})
}
