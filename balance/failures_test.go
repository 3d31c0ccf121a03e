package balance_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
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

func TestPenalty(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []option
		want time.Duration
	}{
		"linkerd's": {[]option{balance.WithPolicy[*response](balance.Policy{Penalty: 5 * time.Second})}, 5 * time.Second},
		"set":       {[]option{balance.WithPolicy[*response](balance.Policy{Penalty: time.Second})}, time.Second},
		"none":      {[]option{balance.WithPolicy[*response](balance.Policy{Penalty: -1})}, 0}, // what it took
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, append([]option{new(verdicts).judging()}, tt.opts...)...), servers(1)
				ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
				p.add(ss...)
				_, err := p.Call(t.Context(), "")
				require.ErrorIs(t, err, errBroken)
				assert.Equal(t, tt.want, p.ewma(ss[0]).Round(time.Millisecond))
				_, err = p.Call(t.Context(), "")
				require.ErrorIs(t, err, errBroken)
				assert.Equal(t, tt.want, p.ewma(ss[0]).Round(time.Millisecond), "the second makes it no better")
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

// A failure counts as at least 20 ms.
func TestPenaltyMinimum(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(3)
		for _, s := range ss {
			s.after(func() time.Duration { return 100 * time.Microsecond })
		}
		p.add(ss...)
		p.load(t, 100, 100*time.Millisecond, ss, patient)
		ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		p.loadUntilCalled(t, ss, ss[0])
		assert.InDelta(t, 20*time.Millisecond, p.ewma(ss[0]), float64(2*time.Millisecond), "some of it has faded")
	})
}

// By default a failure counts as twenty times the median, which does not include
// penalties.
func TestPenaltyDefault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(3)
		for _, s := range ss {
			s.after(func() time.Duration { return 10 * time.Millisecond })
		}
		p.add(ss...)
		p.load(t, 100, 100*time.Millisecond, ss, patient)
		ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		p.loadUntilCalled(t, ss, ss[0])
		assert.InDelta(t, 200*time.Millisecond, p.ewma(ss[0]), float64(30*time.Millisecond), "some of it has faded")
		ss[1].serve, ss[2].serve = ss[0].serve, ss[0].serve
		p.load(t, 1000, 100*time.Millisecond, ss, patient)
		for _, s := range ss {
			p.loadUntilCalled(t, ss, s)
			assert.InDelta(t, 200*time.Millisecond, p.ewma(s), float64(20*time.Millisecond))
		}
	})
}

// kratos#3836: cancellations and short deadlines are not failures of the endpoint.
func TestPenaltyCanceled(t *testing.T) {
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
