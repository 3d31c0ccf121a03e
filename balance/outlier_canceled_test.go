package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

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

// Canceled requests and deadlines below twice the median latency do not count.
func TestOutlierCanceled(t *testing.T) {
	const usual = 10 * time.Millisecond
	for name, tt := range map[string]struct {
		slow   time.Duration // latency of one endpoint
		caller func(int) (context.Context, context.CancelFunc)
	}{
		"deadline below the median":       {usual, allowing(usual / 2)},
		"deadline below twice the median": {time.Minute, allowing(usual * 3 / 2)},
		"canceled":                        {time.Minute, leaving(time.Second)},
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
					before := p.ewma(ss[0])
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
					require.Equal(t, penalty == 0, p.ewma(ss[0]) > 2*before, "it has the penalty of a failure")
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
