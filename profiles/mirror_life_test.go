package profiles_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func TestMirrorOfCopies(t *testing.T) {
	withRouter(t, nil, func(t *testing.T, w *testRouter) {
		w.post(t, "a copy", profiles.MirrorHeader, "elsewhere:80")
		require.Equal(t, "elsewhere:80", w.at(target)[0].header.Get(profiles.MirrorHeader))
		require.Empty(t, w.at(shadow), "or two that mirror each other would do so without end")
	})
}

func TestMirrorSeveral(t *testing.T) {
	change := func(p *profiles.Profile) {
		p.Targets = []profiles.Target{{"a:80", 1}, {"b:80", 1}}
		p.Routes[0].Mirrors = []profiles.Mirror{{Authority: shadow}, {Authority: "a:80", MaxBodyBytes: -1}, {Authority: ""}}
		p.Routes = append([]profiles.Route{{Name: "other", Match: profiles.Method("PUT"), Mirrors: p.Routes[0].Mirrors[:1]}}, p.Routes...)
	}
	log := newLog()
	withConfig(t, profiles.Config{Log: log.logger()}, change, func(t *testing.T, w *testRouter) {
		w.post(t, "order")
		require.Len(t, w.at(shadow), 1)
		primary := append(w.at("a:80"), w.at("b:80")...)
		require.Len(t, primary, 1, "a body is more than the second mirror may have")
		require.Equal(t, map[string]int{target: 0, shadow: 1, "a:80": 1, "b:80": 1}, map[string]int{
			target: w.made[target], shadow: w.made[shadow], "a:80": w.made["a:80"], "b:80": w.made["b:80"],
		}, "a target is made once")
		require.Equal(t, []string{`Routes[1].Mirrors[2]: route "all": no authority`}, log.attrs("left out of a profile", "err"))
	})
}

func TestMirrorShare(t *testing.T) {
	const n = 2000
	withRouter(t, func(p *profiles.Profile) { p.Routes[0].Mirrors[0].Fraction = 0.25 }, func(t *testing.T, w *testRouter) {
		for range n {
			w.post(t, "")
			synctest.Wait()
		}
		assert.InDelta(t, n/4, len(w.at(shadow)), 6*20) // six standard deviations
	})
}

// MaxInFlight counts gRPC and other requests together.
func TestMirrorInFlight(t *testing.T) {
	change := func(p *profiles.Profile) {
		p.Routes[0].Mirrors[0].MaxInFlight = 2
		p.Routes[0].AttemptTimeout = time.Second
	}
	withRouter(t, change, func(t *testing.T, w *testRouter) {
		w.serve[shadow] = hanging
		for range 3 {
			w.post(t, "order", "Content-Type", "application/grpc")
			w.post(t, "order")
		}
		require.Len(t, w.at(shadow), 2)
		time.Sleep(10*time.Second - 1)
		w.post(t, "order")
		require.Len(t, w.at(shadow), 2)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.post(t, "order")
		require.Len(t, w.at(shadow), 3, "a copy may take 10 s")
	})
}

func hanging(ctx context.Context) (webResponse, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestMirrorKeptAcrossProfiles(t *testing.T) {
	one := func(p *profiles.Profile) { p.Routes[0].Mirrors[0].MaxInFlight = 1 }
	withRouter(t, one, func(t *testing.T, w *testRouter) {
		w.serve[shadow] = hanging
		w.post(t, "order")
		require.Len(t, w.at(shadow), 1)

		w.source.Set(target, mirroring(one, func(p *profiles.Profile) { p.Name = "web.local" }))
		synctest.Wait()
		w.post(t, "order")
		require.Len(t, w.at("web.local:80"), 1)
		require.Len(t, w.at(shadow), 1, "the same route has the same mirror, which is full")

		w.source.Set(target, mirroring(one, func(p *profiles.Profile) { p.Routes[0].Mirrors[0].Fraction = 1 }))
		synctest.Wait()
		w.post(t, "order")
		require.Len(t, w.at(shadow), 2, "another mirror has room of its own")

		w.source.Set(target, &profiles.Profile{})
		synctest.Wait()
		w.post(t, "order")
		require.Len(t, w.at(shadow), 2)
		require.Equal(t, 1, w.made[shadow])
	})
}

func TestMirrorRouterEnds(t *testing.T) {
	withRouter(t, nil, func(t *testing.T, w *testRouter) {
		ended := 0
		w.serve[shadow] = func(ctx context.Context) (webResponse, error) {
			defer func() { ended++ }()
			return hanging(ctx)
		}
		w.post(t, "order")
		require.Len(t, w.at(shadow), 1)
		w.end()
		synctest.Wait()
		require.Equal(t, 1, ended)
		w.post(t, "order")
		require.Len(t, w.at(shadow), 1)
	})
}

// Copies are not requests of the route, nor tries.
func TestMirrorMetrics(t *testing.T) {
	c := newCounters()
	c.requests.Mirrored = labelled{}
	withConfig(t, profiles.Config{Metrics: c.instruments}, nil, func(t *testing.T, w *testRouter) {
		w.serve[shadow] = func(context.Context) (webResponse, error) { return answer(500), nil }
		w.post(t, "order")
		w.post(t, strings.Repeat("x", 64<<10))
		w.post(t, strings.Repeat("x", 64<<10+1))
		require.Len(t, w.at(shadow), 2)
		assert.EqualValues(t, 3, count(c.requests.Requests))
		assert.EqualValues(t, 3, count(c.tries.Requests))
		assert.EqualValues(t, 3, of(c.requests.Responses, "success"))
		assert.EqualValues(t, 2, of(c.requests.Mirrored, "answered"))
		assert.EqualValues(t, 1, of(c.requests.Mirrored, "skipped"))
		tree := layer.Describe(w.webRouter).String()
		assert.Contains(t, tree, "mirror     share=1 in_flight=0 answered=2 failed=0 rejected=0 full=0 skipped=1")
		assert.Contains(t, tree, "to         target="+shadow)
	})
}

// The copy knows its route, for tap and metrics, and nothing else of its caller.
func TestMirrorRoute(t *testing.T) {
	withRouter(t, nil, func(t *testing.T, w *testRouter) {
		routes := make(chan *layer.Route, 1)
		w.serve[shadow] = func(ctx context.Context) (webResponse, error) {
			routes <- layer.RouteFromContext(ctx)
			return nil, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := w.Call(ctx, post(t, "order"))
		cancel()
		require.NoError(t, err)
		require.Equal(t, "all", (<-routes).Name)
	})
}

// A request that the route refuses, or answers itself, is not copied.
func TestMirrorUnsentRequests(t *testing.T) {
	withRouter(t, func(p *profiles.Profile) { p.Routes[0].Limit = 1 }, func(t *testing.T, w *testRouter) {
		rsp, err := w.Call(t.Context(), post(t, "order"))
		require.NoError(t, err)
		_, err = w.Call(t.Context(), post(t, "order"))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.Len(t, w.at(shadow), 1)
		require.NoError(t, rsp.Body.Close())
	})
	withRouter(t, func(p *profiles.Profile) {
		p.Routes[0].Redirect = &profiles.Redirect{Host: "elsewhere"}
	}, func(t *testing.T, w *testRouter) {
		rsp, err := w.Call(t.Context(), post(t, "order"))
		require.NoError(t, err)
		require.Equal(t, http.StatusFound, rsp.StatusCode)
		require.Empty(t, w.at(shadow))
	})
}

// Concurrent requests while profiles change: responses are correct, and every copy
// belongs to a request.
func TestMirrorUnderLoad(t *testing.T) {
	withRouter(t, nil, func(t *testing.T, w *testRouter) {
		w.serve[shadow] = func(ctx context.Context) (webResponse, error) {
			switch rand.IntN(4) {
			case 0:
				return hanging(ctx)
			case 1:
				panic("down")
			}
			return nil, nil
		}
		done := make(chan struct{})
		for range 20 {
			go func() {
				for range 20 {
					w.post(t, "order")
					time.Sleep(time.Second)
				}
				done <- struct{}{}
			}()
		}
		go func() {
			for i := range 20 {
				time.Sleep(time.Second)
				w.source.Set(target, mirroring(func(p *profiles.Profile) { p.Routes[0].Mirrors[0].MaxInFlight = 1 + i%3*100 }))
			}
			done <- struct{}{}
		}()
		for range 21 {
			<-done
		}
		require.Len(t, w.at(target), 400)
		require.NotEmpty(t, w.at(shadow))
		for _, a := range w.at(shadow) {
			require.Equal(t, "order", a.body)
		}
	})
}
