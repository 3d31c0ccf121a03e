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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
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
		slow := p.load(t, 10_000, every, ss, patient)
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
	b := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"web": endpoints}), "web",
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
