package balance_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

const every = 2 * time.Millisecond // 500 requests a second

// around returns a random latency from half of d to one and a half.
func around(d time.Duration) func() time.Duration {
	return func() time.Duration { return d/2 + rand.N(d) }
}

func TestSharesEqual(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss...)
		p.load(t, 5000, every, ss, patient)                           // until the default is forgotten
		for _, share := range p.load(t, 50_000, every, ss, patient) { // ten decays
			require.InDelta(t, 0.20, share, 0.04)
		}
	})
}

// An endpoint that is ten times slower gets few requests, and its share again soon after
// its recovery.
func TestSharesSlowEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		ss[0].after(around(100 * time.Millisecond))
		p.add(ss...)
		p.load(t, 5000, every, ss, patient)
		slow := p.load(t, 25_000, every, ss, patient)
		require.Less(t, slow[0], 0.03)
		require.Positive(t, slow[0], "it is tried now and then")

		ss[0].after(around(10 * time.Millisecond))
		p.load(t, 15_000, every, ss, patient) // three decays
		healed := p.load(t, 5000, every, ss, patient)
		require.Greater(t, healed[0], 0.15)
	})
}

// Requests to one endpoint are canceled every other time, which is neither a fast nor a
// slow response.
func TestSharesCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss...)
		p.load(t, 5000, every, ss, patient)
		before := p.load(t, 60_000, every, ss, patient) // twelve decays
		leaving := p.load(t, 60_000, every, ss, func(i int) (context.Context, context.CancelFunc) {
			if i%2 == 0 {
				return allowing(time.Millisecond)(i)
			}
			return patient(i)
		})
		for i := range ss {
			require.InDelta(t, before[i], leaving[i], 0.03)
		}
	})
}

// If a cancellation counted as a response, an endpoint with canceled requests would
// seem fast.
func TestSharesSlowEndpointCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		ss[0].after(around(400 * time.Millisecond))
		p.add(ss...)
		impatient := allowing(50 * time.Millisecond)
		p.load(t, 5000, every, ss, impatient)
		require.Less(t, p.load(t, 10_000, every, ss, impatient)[0], 0.03)
	})
}

func TestSharesByChoices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shares []float64
		for _, k := range []int{2, 5} {
			p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Picker: balance.PowerOfChoices(k)})), servers(5)
			for i, s := range ss {
				s.after(around(time.Duration(10*(i+1)) * time.Millisecond))
			}
			p.add(ss...)
			p.load(t, 5000, 20*time.Millisecond, ss, patient)
			shares = append(shares, p.load(t, 5000, 20*time.Millisecond, ss, patient)[0])
			p.finish()
		}
		require.Greater(t, shares[1], shares[0]+0.1)
	})
}

// Sequential requests to equal endpoints below a millisecond are distributed evenly, also
// with scheduling hiccups.
func TestSharesSubMillisecond(t *testing.T) {
	const us = time.Microsecond
	for name, latency := range map[string]func() time.Duration{
		"0.2 to 0.5 ms":       func() time.Duration { return 200*us + rand.N(300*us) },
		"hiccups to 5 ms":     hiccups(5 * time.Millisecond),
		"hiccups to 30 ms":    hiccups(30 * time.Millisecond),
		"tens of nanoseconds": func() time.Duration { return 10 + rand.N(time.Duration(90)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t), servers(3)
				for _, s := range ss {
					s.after(latency)
				}
				p.add(ss...)
				const n = 3000
				for range n {
					require.NoError(t, p.send(t.Context()))
				}
				for _, s := range ss {
					require.InEpsilon(t, n/3, s.calls.Load(), 0.2)
				}
			})
		})
	}
}

// hiccups returns latencies around 0.2 ms, of which one in 50 is up to most.
func hiccups(most time.Duration) func() time.Duration {
	random := rand.New(rand.NewPCG(1, uint64(most)))
	return func() time.Duration {
		if random.IntN(50) == 0 {
			return time.Duration(random.Int64N(int64(most)))
		}
		return time.Duration(100_000 + random.Int64N(200_000))
	}
}

// Real HTTP servers get even shares. A loaded machine may delay the first request of one
// by many times its latency, so one of five rounds must be even.
func TestSharesLoopback(t *testing.T) {
	var shares [3]float64
	for range 5 {
		shares = loopbackShares(t)
		if slices.Min(shares[:]) > 0.8/3 && slices.Max(shares[:]) < 1.2/3 {
			return
		}
	}
	require.Fail(t, "uneven", "%v", shares)
}

// loopbackShares returns the shares of three servers in 2 000 sequential requests.
func loopbackShares(t *testing.T) (shares [3]float64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls [3]atomic.Int64
	var endpoints []resolve.Endpoint
	for i := range calls {
		srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls[i].Add(1) }))
		defer srv.Close()
		addr := netip.MustParseAddrPort(srv.Listener.Addr().String())
		endpoints = append(endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}})
	}
	b := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"web": endpoints}), balance.Config{Target: "web"},
		func(ctx context.Context, t discover.Target) httplayer.Service {
			return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
		})
	require.NoError(t, b.Ready(t.Context()))
	client := &http.Client{Transport: httplayer.RoundTripper(b)}
	const n = 2000
	for range n {
		rsp, err := client.Get("http://web/")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, rsp.Body.Close())
	}
	for i := range calls {
		shares[i] = float64(calls[i].Load()) / n
	}
	return shares
}

// Long streams are distributed by number, regardless of their first byte.
func TestSharesLongStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		p.add(ss...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 400 {
			_, err := p.Call(ctx, "")
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		for _, s := range ss {
			require.InDelta(t, 100, p.of(s).Get("in_flight"), 8)
		}
	})
}

// stream sends n requests at a rate and does not wait for them.
func (p *pool) stream(n int, every time.Duration) {
	for range n {
		go func() { _ = p.send(context.Background()) }()
		time.Sleep(every)
	}
}

// A new endpoint with a long first request gets further probes and its share.
func TestProbeLongFirstRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[:4]...)
		p.load(t, 5000, time.Millisecond, ss, patient)
		quick := ss[4].serve
		var later atomic.Bool
		ss[4].serve = func(ctx context.Context, req string) (*response, error) {
			if !later.Swap(true) {
				time.Sleep(30 * time.Minute)
				return body("long"), nil
			}
			return quick(ctx, req)
		}
		p.add(ss[4])
		const n = 20_000
		p.stream(n, time.Second/2000)
		assert.Greater(t, float64(ss[4].calls.Load())/n, 0.1, "of a fifth")
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, p.of(ss[4]).Get("in_flight"), "the long one")
		time.Sleep(time.Hour)
	})
}

// Requests from before an ejection do not prevent probes after it.
func TestProbeOldRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t,
			balance.WithPolicy[*response](balance.Policy{Penalty: -1, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3}}),
			balance.WithClassifier(layer.DefaultClassifier[*response])), servers(4)
		for _, s := range ss[1:] {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[0].hang())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			go func() { _, _ = p.Call(ctx, "") }()
			synctest.Wait()
		}
		p.add(ss[1:]...)
		ss[0].fail(always)
		p.stream(4000, time.Second/1000)
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
		ss[0].after(around(10 * time.Millisecond))
		time.Sleep(time.Minute)
		before := ss[0].calls.Load()
		p.stream(4000, time.Second/1000)
		assert.Greater(t, float64(ss[0].calls.Load()-before)/4000, 0.05, "of a quarter, with two that go on")
		cancel()
		time.Sleep(time.Second)
	})
}

// A new endpoint that hangs gets a request now and then only.
func TestProbeHangingEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[:4]...)
		p.load(t, 5000, time.Millisecond, ss, patient)
		ctx, cancel := context.WithCancel(context.Background())
		ss[4].hang()
		p.add(ss[4])
		for i, calls := range []int64{1, 2, 3} {
			// the median is 10 ms, or a little more after a peak
			for range 250 {
				go func() { _ = p.send(ctx) }()
				time.Sleep(time.Millisecond)
			}
			assert.LessOrEqual(t, ss[4].calls.Load(), calls+1, i)
			assert.GreaterOrEqual(t, ss[4].calls.Load(), min(calls, 2), i)
		}
		for range 60_000 {
			go func() { _ = p.send(ctx) }()
			time.Sleep(time.Millisecond)
		}
		t.Logf("%d requests of 60 000 in a minute", ss[4].calls.Load())
		assert.Less(t, ss[4].calls.Load(), int64(20), "no more than others have in flight")
		cancel()
		time.Sleep(time.Second)
	})
}
