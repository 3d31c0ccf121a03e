package balance_test

import (
	"context"
	"errors"
	"io"
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

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// neverFailing is a classifier without failures.
func neverFailing() option {
	return balance.WithClassifier(func(layer.Outcome[*response]) layer.Class { return layer.Success })
}

// verdicts is a classifier of single responses, at once or after the end of the body, as
// a trailer.
type verdicts struct{ head, trailer sync.Map }

func (v *verdicts) failing(kind *sync.Map) *response {
	rsp := body("x")
	kind.Store(rsp, true)
	return rsp
}

func (v *verdicts) judging() option {
	return balance.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
		_, head := v.head.Load(o.Response)
		_, trailer := v.trailer.Load(o.Response)
		if o.Err != nil || head || trailer && o.Ended {
			return layer.Failure
		}
		return layer.Success
	})
}

// kubernetes/ingress-nginx#9882, linkerd2-proxy#4537: an endpoint that fails fast
// attracts requests.
func TestFailingFast(t *testing.T) {
	var v verdicts
	for name, fails := range map[string]func() (*response, error){
		"by an error":    func() (*response, error) { return nil, errBroken },
		"by its head":    func() (*response, error) { return v.failing(&v.head), nil },
		"by its trailer": func() (*response, error) { return v.failing(&v.trailer), nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				share := func(opts ...option) (failing, healed float64) {
					p, ss := newPool(t, opts...), servers(3)
					for _, s := range ss {
						s.after(func() time.Duration { return 20 * time.Millisecond })
					}
					well := ss[0].serve
					ss[0].serve = func(context.Context, string) (*response, error) {
						time.Sleep(time.Millisecond)
						return fails()
					}
					p.add(ss...)
					failing = p.load(t, 2000, 5*time.Millisecond, ss, patient)[0]
					ss[0].serve = well
					time.Sleep(2 * time.Minute)
					return failing, p.load(t, 2000, 5*time.Millisecond, ss, patient)[0]
				}
				unjudged, _ := share(neverFailing())
				assert.Greater(t, unjudged, 0.5, "by its latency alone it looks best")
				judged, healed := share(v.judging())
				assert.Less(t, judged, 0.01)
				assert.InDelta(t, 1.0/3, healed, 0.05, "and when it is well again it is back")
			})
		})
	}
}

// loadUntilCalled sends requests, one after the other, until s has received one of them.
func (p *pool) loadUntilCalled(t *testing.T, ss []*server, s *server) {
	t.Helper()
	for before := s.calls.Load(); s.calls.Load() == before; {
		p.load(t, 1, 100*time.Millisecond, ss, patient)
	}
}

// kratos#3836: cancellations and short deadlines are not failures of the endpoint.
func TestShortDeadlineIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(1)
		ss[0].after(func() time.Duration { return time.Second })
		p.add(ss...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.Error(t, p.send(ctx))
		left, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		require.Error(t, p.send(left))
		assert.LessOrEqual(t, p.ewma(ss[0]), 30*time.Millisecond)
	})
}

// Failures increase the cost of an endpoint, and not the latency beside it.
func TestFailureCost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		for _, s := range ss {
			s.after(func() time.Duration { return 5 * time.Millisecond })
		}
		p.add(ss...)
		p.load(t, 1, time.Second, ss, patient)
		require.Nil(t, p.of(ss[0]).Get("cost"))
		ss[0].serve = func(context.Context, string) (*response, error) {
			time.Sleep(5 * time.Millisecond)
			return nil, io.ErrUnexpectedEOF
		}
		for range 50 {
			_, _ = p.Call(t.Context(), "")
		}
		cost, _ := p.of(ss[0]).Get("cost").(time.Duration)
		require.Greater(t, cost, 50*time.Millisecond)
		require.Less(t, p.ewma(ss[0]), 10*time.Millisecond)
		require.Nil(t, p.of(ss[1]).Get("cost"))
	})
}

// A rejection at the end of a response has no latency.
func TestLateRejection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].serve = func(context.Context, string) (*response, error) {
			return &response{io.NopCloser(io.MultiReader(strings.NewReader(""), failing{layer.ErrNotReady}))}, nil
		}
		p.add(ss...)
		before := p.ewma(ss[0])
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		_, err = io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, before, p.ewma(ss[0]))
		assert.Zero(t, p.of(ss[0]).Get("in_flight"))
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestClassifyAllocatesNothing(t *testing.T) {
	b, _ := of(t, 10, balance.WithClassifier(layer.DefaultClassifier[int]))
	ctx := context.Background()
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = b.Call(ctx, 1) }))
}

// An endpoint that fails fast gets few requests, for any load, latency and failure rate
// of the others.
func TestFailingFastMatrix(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		servers     int
		takes, each time.Duration
		background  float64
		requests    int
		most        float64
	}{
		"idle":                {3, 50 * ms, 10 * ms, 0, 3000, 0.01},
		"75 in flight each":   {3, 50 * ms, ms / 3, 0, 6000, 0.01},
		"slow":                {3, time.Second, 20 * ms, 0, 5000, 0.01},
		"very slow":           {3, 10 * time.Second, 200 * ms, 0, 3000, 0.05},
		"0.1 % fail anywhere": {10, 20 * ms, ms, 0.001, 6000, 0.01},
		"1 % fail anywhere":   {10, 20 * ms, ms, 0.01, 6000, 0.01},
		"5 % fail anywhere":   {10, 20 * ms, 10 * ms, 0.05, 5000, 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, new(verdicts).judging()), servers(tt.servers)
				for _, s := range ss {
					well := s.after(func() time.Duration { return tt.takes }).serve
					s.serve = func(ctx context.Context, q string) (*response, error) {
						if rsp, err := well(ctx, q); rand.Float64() >= tt.background {
							return rsp, err
						}
						return nil, errBroken
					}
				}
				p.add(ss...)
				p.load(t, tt.requests, tt.each, ss, patient)
				ss[0].serve = func(context.Context, string) (*response, error) {
					time.Sleep(ms)
					return nil, errBroken
				}
				require.Less(t, p.load(t, tt.requests, tt.each, ss, patient)[0], tt.most)
			})
		})
	}
}

// Explain shows the failures since the last good response.
func TestFailing(t *testing.T) {
	var v verdicts
	for name, fails := range map[string]func() (*response, error){
		"by an error":    func() (*response, error) { return nil, errBroken },
		"by its trailer": func() (*response, error) { return v.failing(&v.trailer), nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, v.judging()), servers(1)
				p.add(ss...)
				var failures int
				explained := func() any {
					ctx, why := layer.Explain(t.Context())
					_ = p.send(ctx)
					return why.Choices()[0].Children[0].State.Get("consecutive_failures")
				}
				ss[0].serve = func(context.Context, string) (*response, error) {
					if failures--; failures >= 0 {
						return fails()
					}
					return body("well"), nil
				}
				failures = 1
				require.Equal(t, []any{nil, uint32(1), nil}, []any{explained(), explained(), explained()})
				failures = 2
				require.Equal(t, []any{nil, uint32(1), uint32(2), nil}, []any{explained(), explained(), explained(), explained()})
			})
		})
	}
}

// Rare failures of all endpoints do not hide a slow one.
func TestSlowEndpointAmongFailing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(10)
		for i, s := range ss {
			takes := 5 * time.Millisecond
			if i == 0 {
				takes = 105 * time.Millisecond
			}
			well := s.after(func() time.Duration { return takes }).serve
			s.serve = func(ctx context.Context, q string) (*response, error) {
				if rsp, err := well(ctx, q); rand.Float64() >= 0.001 {
					return rsp, err
				}
				return nil, errBroken
			}
		}
		p.add(ss...)
		p.load(t, 10_000, time.Millisecond, ss, patient)
		require.Less(t, p.load(t, 20_000, time.Millisecond, ss, patient)[0], 0.01)
		for _, s := range ss {
			require.Less(t, p.ewma(s), 500*time.Millisecond)
		}
	})
}

// If all endpoints have failed, the first one that recovers does not get all requests.
func TestAllFailing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(10)
		var down atomic.Bool
		for _, s := range ss {
			s.serve = func(context.Context, string) (*response, error) {
				if down.Load() {
					time.Sleep(time.Millisecond)
					return nil, errBroken
				}
				time.Sleep(20 * time.Millisecond)
				return body("well"), nil
			}
		}
		p.add(ss...)
		p.load(t, 500, 10*time.Millisecond, ss, patient)
		down.Store(true)
		p.load(t, 2000, 10*time.Millisecond, ss, patient)
		down.Store(false)
		shares := p.load(t, 500, 10*time.Millisecond, ss, patient)
		assert.Less(t, slices.Max(shares), 0.4)
	})
}

// An endpoint that is ten times as slow as the others leaves the aperture.
func TestSlowEndpointLeavesAperture(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(40)
		takes := make([]time.Duration, len(ss))
		for i, s := range ss {
			takes[i] = 5 * time.Millisecond
			s.after(func() time.Duration { return takes[i] })
		}
		p.add(ss...)
		isOutside := func(s *server) bool { return p.of(s).Get("outside_aperture") != nil }
		slow := slices.IndexFunc(ss, func(s *server) bool { return !isOutside(s) })
		takes[slow] = 49 * time.Millisecond
		p.load(t, 5000, 10*time.Millisecond, ss, patient)
		require.False(t, isOutside(ss[slow]), "nine times as slow")
		takes[slow] = time.Second
		for range 20 {
			p.load(t, 500, 10*time.Millisecond, ss, patient)
		}
		require.True(t, isOutside(ss[slow]))
	})
}

// lasting is a body with one byte that ends with an error from a channel.
type lasting struct {
	end    <-chan struct{}
	with   error
	before bool
}

func (l *lasting) Read(p []byte) (int, error) {
	if !l.before {
		l.before = true
		return copy(p, "x"), nil
	}
	<-l.end
	return 0, l.with
}

func (l *lasting) Close() error { return nil }

// A failing endpoint without streams gets few requests among others with many streams.
func TestFailingEndpointAmongStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const streams = 3000
		p, ss := newPool(t, balance.WithClassifier(layer.DefaultClassifier[*response])), servers(3)
		over, broken := make(chan struct{}), make(chan struct{})
		for i, s := range ss {
			end := over
			if i == 0 {
				end = broken
			}
			s.serve = func(context.Context, string) (*response, error) {
				time.Sleep(5 * time.Millisecond)
				return &response{&lasting{end: end, with: io.EOF}}, nil
			}
		}
		p.add(ss...)
		for range streams {
			go func() { _ = p.send(context.Background()) }()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Greater(t, ss[0].calls.Load(), int64(streams/4))
		for i, s := range ss {
			s.after(func() time.Duration { return 5 * time.Millisecond })
			if i == 0 {
				s.serve = func(context.Context, string) (*response, error) {
					time.Sleep(5 * time.Millisecond)
					return nil, errBroken
				}
			}
		}
		close(broken)
		synctest.Wait()
		require.Less(t, p.load(t, 3000, 10*time.Millisecond, ss, patient)[0], 0.01)
		close(over)
		synctest.Wait()
	})
}

// A stream that fails after an hour is a failure, but not a latency of an hour.
func TestStreamFailsLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(layer.DefaultClassifier[*response])), servers(3)
		for _, s := range ss {
			s.after(around(5 * time.Millisecond))
		}
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		well, breaks := ss[0].serve, make(chan struct{})
		ss[0].serve = func(context.Context, string) (*response, error) {
			return &response{&lasting{end: breaks, with: io.ErrUnexpectedEOF}}, nil
		}
		for before := ss[0].calls.Load(); ss[0].calls.Load() == before; {
			go func() { _ = p.send(context.Background()) }()
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		ss[0].serve = well
		time.Sleep(time.Hour)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		close(breaks)
		synctest.Wait()
		require.Less(t, p.ewma(ss[0]), time.Second)
		require.Positive(t, p.state(ss[0]).ErrorRate)
	})
}

var errCallers = errors.New("the caller's own body broke off")

func callersAreIgnored(o layer.Outcome[*response]) layer.Class {
	if errors.Is(o.Err, errCallers) {
		return layer.Ignorable
	}
	return layer.DefaultClassifier(o)
}

// An ignorable response is not a good one between failures.
func TestIgnorableResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		policy := balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5}}
		p, ss := newPool(t, balance.WithPolicy[*response](policy), balance.WithClassifier(callersAreIgnored)), servers(4)
		for _, s := range ss {
			s.after(func() time.Duration { return 10 * time.Millisecond })
		}
		n := 0
		ss[0].serve = func(context.Context, string) (*response, error) {
			if n++; n%4 == 0 {
				return nil, errCallers
			}
			return nil, errBroken
		}
		p.add(ss...)
		for range 400 {
			_ = p.send(context.Background())
			time.Sleep(time.Millisecond)
		}
		require.Less(t, ss[0].calls.Load(), int64(20))
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
	})
}

// Its latency counts only if it is longer than expected.
func TestIgnorableLatency(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(callersAreIgnored)), servers(1)
		p.add(ss...)
		took, err := 50*time.Millisecond, error(nil)
		ss[0].serve = func(context.Context, string) (*response, error) {
			time.Sleep(took)
			return body("x"), err
		}
		for range 20 {
			require.NoError(t, p.send(t.Context()))
		}
		took, err = time.Millisecond, errCallers
		for range 10_000 {
			require.ErrorIs(t, p.send(t.Context()), errCallers)
		}
		require.Greater(t, p.ewma(ss[0]), 40*time.Millisecond)
		took = time.Second
		require.ErrorIs(t, p.send(t.Context()), errCallers)
		require.Greater(t, p.ewma(ss[0]), 55*time.Millisecond)
	})
}

func TestCompletionPanics(t *testing.T) {
	for _, sample := range []balance.Sample{balance.SampleHeaders, balance.SampleFirstByte} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Sample: sample}),
				balance.WithCompletion(func(context.Context, *response, layer.Observer) *response { panic("unforeseen") })), servers(1)
			p.add(ss...)
			require.Panics(t, func() { _, _ = p.Call(t.Context(), "") })
			require.Zero(t, p.Snapshot()[0].InFlight)
		})
	}
}

// A slow start begins when an endpoint is ready for the first time, or after a long time.
func TestSlowStartBegins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{SlowStart: time.Minute})), servers(2)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[0])
		p.load(t, 1000, 10*time.Millisecond, ss, patient)
		reopens := func(after time.Duration) (share float64) {
			time.Sleep(after)
			ss[1].open(true)
			synctest.Wait()
			return p.load(t, 500, 10*time.Millisecond, ss, patient)[1]
		}
		shuts := func() {
			ss[1].open(false)
			for before := ss[1].refused.Load(); ss[1].refused.Load() == before; {
				_ = p.send(t.Context())
			}
			synctest.Wait()
		}
		ss[1].open(false)
		p.add(ss[1])
		require.Less(t, reopens(2*time.Minute), 0.3, "ready for the first time")
		require.InDelta(t, 0.5, reopens(time.Minute), 0.1, "no more")
		shuts()
		require.InDelta(t, 0.5, reopens(10*time.Second), 0.1, "unchanged")
		shuts()
		require.Less(t, reopens(time.Minute), 0.3, "perhaps another process")
	})
}

const sec = time.Second

func sampled(at balance.Sample) option {
	return balance.WithPolicy[*response](balance.Policy{Sample: at})
}

// stream is a body that can be fed.
func stream() (*response, *io.PipeWriter) {
	r, w := io.Pipe()
	return &response{r}, w
}

// The requests in flight and the latency at each point of a response.
func TestLatencyFirstByte(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name    string
		opts    []option
		headers time.Duration // from the request to the return of Call
		first   time.Duration // from there to the first byte; 0 means none
		rest    time.Duration // from there to the end
		end     error
		want    time.Duration // the latency
	}{
		{"first byte", nil, sec, sec, 10 * sec, nil, 2 * sec},
		{"first byte of what breaks", []option{neverFailing()}, sec, sec, 10 * sec, broken, 2 * sec},
		{"empty", nil, sec, 0, 3 * sec, nil, 4 * sec},
		{"broken without a byte", nil, sec, 0, 3 * sec, broken, 4 * sec},
		{"at return", []option{balance.WithCompletion(layer.AtReturn[*response])}, sec, sec, sec, nil, sec},
		{"head, in flight to the end", []option{sampled(balance.SampleHeaders)}, sec, sec, 10 * sec, nil, sec},
		{"end", []option{sampled(balance.SampleEnd)}, sec, sec, 10 * sec, nil, 12 * sec},
		{"end of what breaks", []option{sampled(balance.SampleEnd)}, sec, sec, 10 * sec, broken, 12 * sec},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, tt.opts...), servers(1)
				s := ss[0]
				rsp, w := stream()
				s.serve = func(context.Context, string) (*response, error) { time.Sleep(tt.headers); return rsp, nil }
				p.add(s)
				go func() {
					time.Sleep(tt.headers)
					if tt.first > 0 {
						time.Sleep(tt.first)
						_, _ = io.WriteString(w, "x")
					}
					time.Sleep(tt.rest)
					_ = w.CloseWithError(tt.end)
				}()

				rsp, err := p.Call(t.Context(), "")
				require.NoError(t, err)
				open := uint64(1)
				if tt.name == "at return" {
					open = 0
				}
				require.Equal(t, open, p.of(s).Get("in_flight"))
				_, err = io.Copy(io.Discard, rsp.Body)
				require.Equal(t, tt.end, err)
				require.EqualValues(t, 0, p.of(s).Get("in_flight"))
				require.InEpsilon(t, tt.want.Seconds(), p.ewma(s).Seconds(), 1e-6)
			})
		})
	}
}

func TestInFlight(t *testing.T) {
	for name, end := range map[string]func(rsp *response, w *io.PipeWriter, leave context.CancelFunc){
		"end": func(rsp *response, w *io.PipeWriter, _ context.CancelFunc) {
			_ = w.Close()
			_, _ = io.ReadAll(rsp.Body)
		},
		"close":     func(rsp *response, _ *io.PipeWriter, _ context.CancelFunc) { _ = rsp.Body.Close() },
		"abandoned": func(_ *response, _ *io.PipeWriter, leave context.CancelFunc) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t), servers(1)
				rsp, w := stream()
				ss[0].serve = func(context.Context, string) (*response, error) { return rsp, nil }
				p.add(ss...)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				rsp, err := p.Call(ctx, "")
				require.NoError(t, err)
				time.Sleep(time.Hour)
				require.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
				require.EqualValues(t, 1, p.of(ss[0]).Get("picks"))
				end(rsp, w, leave)
				synctest.Wait()
				require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
				_ = rsp.Body.Close()
				require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"), "once")
			})
		})
	}
}

func TestLatencyOfErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].serve = func(context.Context, string) (*response, error) { time.Sleep(sec); return nil, io.ErrUnexpectedEOF }
		p.add(ss...)
		require.Error(t, p.send(t.Context()))
		require.InEpsilon(t, sec, p.ewma(ss[0]), 0.001)
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

func TestLatencyCanceled(t *testing.T) {
	for _, tt := range []struct {
		name   string
		waited time.Duration
		want   time.Duration
	}{
		{"less than expected", 10 * time.Millisecond, 30 * time.Millisecond},
		{"more than expected", 300 * time.Millisecond, 300 * time.Millisecond},
	} {
		for at, serve := range map[string]func(ctx context.Context, _ string) (*response, error){
			"in Call": func(ctx context.Context, _ string) (*response, error) { <-ctx.Done(); return nil, ctx.Err() },
			"before the first byte": func(context.Context, string) (*response, error) {
				rsp, _ := stream()
				return rsp, nil
			},
		} {
			t.Run(tt.name+" "+at, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: time.Hour})), servers(1)
					ss[0].serve = serve
					p.add(ss...)
					ctx, leave := context.WithTimeout(t.Context(), tt.waited)
					defer leave()
					rsp, err := p.Call(ctx, "")
					if err == nil {
						<-ctx.Done()
						defer rsp.Body.Close()
					}
					synctest.Wait()
					require.InEpsilon(t, tt.want, p.ewma(ss[0]), 0.001)
					require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
				})
			})
		}
	}
}

// Many canceled requests do not change the estimate.
func TestLatencyManyCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: sec})), servers(1)
		p.add(ss[0].after(func() time.Duration { return 20 * time.Millisecond }))
		require.NoError(t, p.send(t.Context()))
		ss[0].hang()
		for range 200 {
			ctx, leave := context.WithTimeout(t.Context(), 5*time.Millisecond)
			require.Error(t, p.send(ctx))
			leave()
		}
		require.Equal(t, 20*time.Millisecond, p.ewma(ss[0]))
	})
}

// A cancellation after the first byte leaves its latency.
func TestLatencyCanceledAfterFirstByte(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Decay: time.Hour})), servers(1)
		rsp, w := stream()
		ss[0].serve = func(context.Context, string) (*response, error) { return rsp, nil }
		p.add(ss...)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		rsp, err := p.Call(ctx, "")
		require.NoError(t, err)
		go func() { time.Sleep(50 * time.Millisecond); _, _ = io.WriteString(w, "x") }()
		_, err = rsp.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		leave()
		synctest.Wait()
		require.InEpsilon(t, 50*time.Millisecond, p.ewma(ss[0]), 0.02)
	})
}

func TestInFlightPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].serve = func(context.Context, string) (*response, error) { panic("boom") }
		p.add(ss...)
		require.PanicsWithValue(t, "boom", func() { _ = p.send(t.Context()) })
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

func TestPolicyTimes(t *testing.T) {
	for _, tt := range []struct {
		name        string
		policy      balance.Policy
		first, then time.Duration // expected at first, and after a response of 1 s and one of 500 ms a second later
	}{
		{"defaults", balance.Policy{}, 30 * time.Millisecond, 732 * time.Millisecond},
		{"Decay", balance.Policy{Decay: sec}, 30 * time.Millisecond, 704 * time.Millisecond},
		{"the least Decay", balance.Policy{Decay: time.Millisecond}, 30 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, balance.WithPolicy[*response](tt.policy)), servers(1)
				took := sec
				p.add(ss[0].after(func() time.Duration { return took }))
				require.Equal(t, tt.first, p.ewma(ss[0]))
				require.NoError(t, p.send(t.Context()))
				took = sec / 2
				time.Sleep(sec / 2)
				require.NoError(t, p.send(t.Context()))
				require.InDelta(t, tt.then, p.ewma(ss[0]), float64(time.Millisecond))
			})
		})
	}
}

// upgraded is the body of a connection that was upgraded, and is silent.
type upgraded struct {
	lasting
	io.Writer
}

// The latency of an upgraded connection is that of its headers.
func TestLatencyUpgrade(t *testing.T) {
	for sample, want := range map[balance.Sample]time.Duration{
		balance.SampleFirstByte: 10 * time.Millisecond, balance.SampleHeaders: 10 * time.Millisecond, balance.SampleEnd: time.Hour,
	} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Sample: sample})), servers(1)
			over := make(chan struct{})
			ss[0].serve = func(context.Context, string) (*response, error) {
				time.Sleep(10 * time.Millisecond)
				return &response{&upgraded{lasting{end: over, with: io.EOF, before: true}, io.Discard}}, nil
			}
			p.add(ss...)
			rsp, err := p.Call(t.Context(), "")
			require.NoError(t, err)
			time.Sleep(time.Hour)
			if sample != balance.SampleEnd {
				require.InDelta(t, want, p.ewma(ss[0]), float64(time.Microsecond), "%v", sample)
			}
			require.EqualValues(t, 1, p.Snapshot()[0].InFlight)
			close(over)
			_, err = rsp.Body.Read(nil)
			require.Equal(t, io.EOF, err)
			require.EqualValues(t, 1, p.Snapshot()[0].InFlight, "the server may still read")
			require.NoError(t, rsp.Body.Close())
			require.Zero(t, p.Snapshot()[0].InFlight)
			require.InDelta(t, want, p.ewma(ss[0]), float64(time.Second), "%v", sample)
		})
	}
}
