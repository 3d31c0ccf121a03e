package httpclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// This file is a proof that a new control plane fits: polling is a source of routes and endpoints for
// a server that nothing else in this module knows, and httpclient follows it.

// routeSettings are the answer of the server for a target: routes, the weights of backends, and the
// addresses of each backend.
type routeSettings struct {
	Version int
	Routes  []struct {
		Prefix  string
		Timeout int // milliseconds
		Retries int
		Split   map[string]uint32
	}
	Backends map[string][]netip.AddrPort
}

// polling gets routeSettings as JSON over HTTP, by long polling: the server answers a request for the
// routeSettings after a version when it has a later one.
type polling struct{ url string }

// poll yields all routeSettings of target until ctx ends.
func (s polling) poll(ctx context.Context, target string, yield func(*routeSettings, error) bool) {
	var latest routeSettings
	for ctx.Err() == nil {
		err := s.get(ctx, fmt.Sprintf("%s/%s?after=%d", s.url, target, latest.Version), &latest)
		current := latest
		if ctx.Err() != nil || !yield(&current, err) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // a real source has a backoff
		}
	}
}

func (s polling) get(ctx context.Context, url string, to *routeSettings) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	rsp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	*to = routeSettings{Version: to.Version}
	return json.NewDecoder(rsp.Body).Decode(to)
}

// Watch implements profiles.Source.
func (s polling) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		s.poll(ctx, target, func(now *routeSettings, err error) bool {
			if err != nil {
				return yield(nil, err)
			}
			return yield(now.profile(), nil)
		})
	}
}

func (s *routeSettings) profile() *profiles.Profile {
	p := &profiles.Profile{Precedence: profiles.MostSpecific}
	for _, r := range s.Routes {
		route := profiles.Route{
			Name: r.Prefix, Match: profiles.PathPrefix(r.Prefix),
			RequestTimeout: time.Duration(r.Timeout) * time.Millisecond,
		}
		if r.Retries > 0 {
			route.Retry = &profiles.Retry{
				Max: r.Retries, NonIdempotent: true, WithoutBudget: true, Statuses: []profiles.Status{{Min: 500, Max: 599}},
			}
		}
		for key, weight := range r.Split {
			route.Backends = append(route.Backends, profiles.Backend{Target: profiles.Target{Authority: key, Weight: weight}})
		}
		p.Routes = append(p.Routes, route)
	}
	return p
}

// Resolve implements resolve.Resolver. A name is the key of a backend of the target shop.
func (s polling) Resolve(ctx context.Context, key string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		s.poll(ctx, "shop", func(now *routeSettings, err error) bool {
			u := resolve.Update{Kind: resolve.Replace}
			for _, addr := range now.Backends[key] {
				u.Endpoints = append(u.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}})
			}
			return yield(u, err)
		})
	}
}

// The source takes at most 150 lines up to here.

// settingsServer serves the routeSettings that set has set.
type settingsServer struct {
	mu      sync.Mutex
	text    string
	version int
	changed chan struct{} // closed by the next set
}

func (s *settingsServer) setf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.text = fmt.Sprintf(`{"Version":%d,`, s.version) + fmt.Sprintf(format, args...)
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

func (s *settingsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for {
		s.mu.Lock()
		text, version, changed := s.text, s.version, s.changed
		s.mu.Unlock()
		if r.FormValue("after") != fmt.Sprint(version) {
			_, _ = w.Write([]byte(text))
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func TestWithProfilesNewSource(t *testing.T) {
	stable, canary := newFlaky(t, "stable"), newFlaky(t, "canary")
	var control settingsServer
	backends := fmt.Sprintf(`"Backends":{"stable|v1":[%q],"canary|v2":[%q]}}`, stable.addr(), canary.addr())
	control.setf(`"Routes":[{"Prefix":"/","Split":{"stable|v1":1}},{"Prefix":"/slow","Timeout":10,"Split":{"stable|v1":1}},
		{"Prefix":"/flaky","Retries":1,"Split":{"stable|v1":1}}],%s`, backends)
	server := httptest.NewServer(&control)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	source := polling{server.URL}
	c := client(t, httpclient.New(t.Context(), "shop", httpclient.WithProfiles(source), httpclient.WithResolver(source)))
	for path, want := range map[string]string{"/": "stable", "/flaky": "stable"} {
		got, err := outcome(t, c, http.MethodPost, path)
		require.NoError(t, err)
		assert.Equal(t, want, got, path)
	}
	_, err := outcome(t, c, http.MethodGet, "/slow")
	require.ErrorIs(t, err, layer.ErrTimeout)

	control.setf(`"Routes":[{"Prefix":"/","Split":{"canary|v2":1}}],%s`, backends)
	requireEventually(t, c, "/", "canary")
}
