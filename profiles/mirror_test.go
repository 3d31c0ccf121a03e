package profiles_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

type (
	webRequest  = *http.Request
	webResponse = *http.Response
	webRouter   = profiles.Router[webRequest, webResponse]
)

const shadow = "shadow:80"

// arrived is what a target saw of a request.
type arrived struct {
	header http.Header
	body   string
	host   string
}

// testRouter is a router over functions, in a bubble.
type testRouter struct {
	*webRouter
	source profiles.Static
	end    context.CancelFunc

	mu   sync.Mutex
	came map[string][]arrived
	made map[string]int
	// serve answers for an authority; nil, or a nil response without an error, is 200.
	serve map[string]func(ctx context.Context) (webResponse, error)
}

// withRouter runs a test with a router. Its profile has one route with one mirror.
func withRouter(t *testing.T, change func(*profiles.Profile), f func(t *testing.T, w *testRouter)) {
	t.Helper()
	withConfig(t, profiles.Config{}, change, f)
}

// withConfig is withRouter for a router with the other fields of c.
func withConfig(t *testing.T, c profiles.Config, change func(*profiles.Profile), f func(t *testing.T, w *testRouter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testRouter{
			came: map[string][]arrived{}, made: map[string]int{}, serve: map[string]func(context.Context) (webResponse, error){},
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.end = cancel
		defer time.Sleep(time.Second) // what a copy takes to end
		defer cancel()
		w.source.Set(target, mirroring(change))
		c.Target, c.Source, c.InitialWait = target, &w.source, time.Second
		w.webRouter = profiles.New(ctx, c, httplayer.HTTP{}, w.mk, profiles.WithRouteLayers(httplayer.HTTP{}))
		f(t, w)
	})
}

func mirroring(change ...func(*profiles.Profile)) *profiles.Profile {
	p := &profiles.Profile{Routes: []profiles.Route{{
		Name: "all", Match: profiles.All{}, Mirrors: []profiles.Mirror{{Authority: shadow}},
	}}}
	for _, f := range change {
		if f != nil {
			f(p)
		}
	}
	return p
}

func (w *testRouter) mk(authority string) httplayer.Service {
	w.made[authority]++
	return layer.Func[webRequest, webResponse](func(ctx context.Context, r webRequest) (webResponse, error) {
		seen := arrived{header: r.Header.Clone(), host: r.Host}
		if r.Body != nil {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			seen.body = string(b)
			_ = r.Body.Close()
		}
		w.mu.Lock()
		w.came[authority] = append(w.came[authority], seen)
		serve := w.serve[authority]
		w.mu.Unlock()
		if serve != nil {
			if rsp, err := serve(ctx); rsp != nil || err != nil {
				return rsp, err
			}
		}
		return answer(http.StatusOK), nil
	})
}

func answer(status int) webResponse {
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, Header: http.Header{}, ContentLength: 5, Body: io.NopCloser(strings.NewReader("hello")),
	}
}

// at returns the requests that have arrived at a target.
func (w *testRouter) at(authority string) []arrived {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.came[authority]
}

func post(t *testing.T, body string, fields ...string) webRequest {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", io.NopCloser(strings.NewReader(body)))
	assert.NoError(t, err)
	r.ContentLength = int64(len(body))
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

func (w *testRouter) post(t *testing.T, body string, fields ...string) {
	t.Helper()
	rsp, err := w.Call(t.Context(), post(t, body, fields...))
	if !assert.NoError(t, err) {
		return
	}
	b, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	assert.Equal(t, "hello", string(b))
	assert.NoError(t, rsp.Body.Close())
}

func TestMirrorRequest(t *testing.T) {
	change := func(p *profiles.Profile) {
		p.Routes[0].RequestHeader = layer.HeaderMutation{Set: []layer.HeaderField{{Name: "Via", Value: "us"}}, Remove: []string{"Authorization"}}
	}
	withRouter(t, change, func(t *testing.T, w *testRouter) {
		w.post(t, "order", "Authorization", "secret", "A", "b")
		require.Equal(t, []arrived{{http.Header{"A": {"b"}, "Via": {"us"}}, "order", "web"}}, w.at(target))
		require.Equal(t, []arrived{{
			http.Header{"A": {"b"}, "Via": {"us"}, profiles.MirrorHeader: {target}}, "order", "web",
		}}, w.at(shadow))
	})
}

func TestMirrorCopiesOncePerRequest(t *testing.T) {
	change := func(p *profiles.Profile) {
		p.Routes[0].Retry, p.RetryBudget = &profiles.Retry{Max: 2, NonIdempotent: true}, budget()
		p.Routes[0].Hedge = time.Millisecond
	}
	withRouter(t, change, func(t *testing.T, w *testRouter) {
		w.serve[target] = func(ctx context.Context) (webResponse, error) {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return answer(http.StatusServiceUnavailable), nil
		}
		w.post(t, "order")
		require.Len(t, w.at(target), 4, "three tries, and a copy of the first for the sake of speed")
		require.Len(t, w.at(shadow), 1)
		require.Equal(t, "order", w.at(shadow)[0].body)
	})
}

func TestMirrorFailures(t *testing.T) {
	hang := func(ctx context.Context) (webResponse, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	for name, serve := range map[string]func(context.Context) (webResponse, error){
		"hangs":      hang,
		"fails":      func(context.Context) (webResponse, error) { return nil, errors.New("down") },
		"refuses":    func(context.Context) (webResponse, error) { return nil, layer.ErrNotReady },
		"panics":     func(context.Context) (webResponse, error) { panic("down") },
		"status 500": func(context.Context) (webResponse, error) { return answer(500), nil },
	} {
		for what, change := range map[string]func(*profiles.Route){
			"alone": func(*profiles.Route) {},
			"with retries": func(r *profiles.Route) {
				r.Retry, r.Timeout, r.AttemptTimeout = &profiles.Retry{}, time.Minute, time.Second
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				withRouter(t, func(p *profiles.Profile) {
					p.RetryBudget = budget()
					change(&p.Routes[0])
				}, func(t *testing.T, w *testRouter) {
					w.serve[shadow] = serve
					w.post(t, "the first, so that the profile is there")
					began := time.Now()
					for range 5 {
						w.post(t, "order")
					}
					require.Zero(t, time.Since(began))
					require.Len(t, w.at(target), 6, "nor is anything sent again")
					require.Len(t, w.at(shadow), 6)
				})
			})
		}
	}
}

func TestMirrorPrimaryFails(t *testing.T) {
	withRouter(t, nil, func(t *testing.T, w *testRouter) {
		down := errors.New("down")
		w.serve[target] = func(context.Context) (webResponse, error) { return nil, down }
		_, err := w.Call(t.Context(), post(t, "order"))
		require.Same(t, down, err)
		require.Len(t, w.at(shadow), 1)

		w.serve[target] = func(context.Context) (webResponse, error) { return nil, layer.ErrNotReady }
		r := post(t, "")
		r.Body = nil
		_, err = w.Call(t.Context(), r)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.Len(t, w.at(shadow), 1, "a rejected request may be served elsewhere")
	})
}

func TestMirrorValidate(t *testing.T) {
	for _, m := range []profiles.Mirror{{Authority: shadow}, {Authority: shadow, Fraction: 1, MaxBodyBytes: -1, MaxInFlight: 1}} {
		assert.NoError(t, m.Validate())
	}
	for want, m := range map[string]profiles.Mirror{
		`no authority`:                     {},
		`fraction NaN is not from 0 to 1`:  {Authority: shadow, Fraction: math.NaN()},
		`fraction -0.1 is not from 0 to 1`: {Authority: shadow, Fraction: -0.1},
		`max body bytes -2 is below -1`:    {Authority: shadow, MaxBodyBytes: -2},
		`max in flight -1 is below 0`:      {Authority: shadow, MaxInFlight: -1},
	} {
		assert.EqualError(t, m.Validate(), want)
		p := mirroring(func(p *profiles.Profile) { p.Routes[0].Mirrors = append(p.Routes[0].Mirrors, m) })
		assert.EqualError(t, p.Validate(), `Routes[0].Mirrors[1]: route "all": `+want)
	}
}
