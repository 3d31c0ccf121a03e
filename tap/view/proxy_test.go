package view

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
	"github.com/gotower/gotower/tap"
)

// secret is in every request and response of a proxy, in fields that must be withheld.
const secret = "s3cret-that-must-not-show"

// testProxy is a proxy with profiles, balancers and a tap, and its upstreams: the
// shop, which has a canary and an endpoint that is down, and reviews.
type testProxy struct {
	reg *tap.Registry
	svc httplayer.Service
	url string
}

func newTestProxy(t *testing.T) *testProxy {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	resolver := static.New(map[string][]resolve.Endpoint{
		"shop.example:80":        {backend(t, "shop-0", 1), backend(t, "shop-1", 1.6), refusing(t, "shop-2")},
		"shop-canary.example:80": {backend(t, "shop-canary-0", 2.5)},
		"reviews.example:80":     {backend(t, "reviews-0", 1), backend(t, "reviews-1", 4)},
	})
	tn := &testProxy{reg: new(tap.Registry)}
	source := new(profiles.Static)
	source.Set("shop.example:80", shopProfile())
	endpoint := func(ctx context.Context, to discover.Target) httplayer.Service {
		labels := maps.Clone(to.Endpoint.Labels)
		labels["tls"] = "disabled"
		return httplayer.NewStack().
			With("tap", tap.Layer(tn.reg, httplayer.HTTP{}, tap.Outbound,
				tap.WithSourceLabels(map[string]string{"tls": "loopback"}), tap.WithDestination(to.Endpoint.Addr, labels))).
			Service(httplayer.NewEndpoint(ctx, to.Endpoint.Addr.String()))
	}
	concrete := func(ctx context.Context, target string) httplayer.Service {
		return httplayer.NewStack().WithTarget(target).Queue(100, 20*time.Second).
			Service(balance.Resolve(ctx, resolver, balance.Config{Target: target}, endpoint))
	}
	concretes := layer.NewCache(ctx, concrete, layer.CachePolicy{})
	logical := func(ctx context.Context, target string) httplayer.Service {
		return profiles.New(ctx, profiles.Config{Target: target, Source: source}, httplayer.HTTP{}, concretes.Service,
			profiles.WithRouteLayers(httplayer.HTTP{}))
	}
	tn.svc = httplayer.NewStack().With("explain", tap.Explain(tn.reg, httplayer.HTTP{})).Limit(1000).
		Service(layer.NewCache(ctx, logical, layer.CachePolicy{}).Router(func(r *http.Request) (string, error) {
			return r.Host + ":80", nil
		}))
	front := httptest.NewServer(httplayer.Handler(tn.svc))
	t.Cleanup(front.Close)
	tn.url = front.URL
	return tn
}

func shopProfile() *profiles.Profile {
	return &profiles.Profile{
		Name: "shop.example",
		Routes: []profiles.Route{
			{
				Name: "checkout", Labels: map[string]string{"route": "checkout"}, Timeout: 20 * time.Second, Retry: &profiles.Retry{},
				Match: profiles.All{profiles.Method("POST"), profiles.PathPrefix("/checkout")},
			},
			{Name: "book by number", Labels: map[string]string{"route": "book by number"}, Match: profiles.Path("/books/[0-9]+")},
			{Name: "books", Labels: map[string]string{"route": "books"}, Match: profiles.Path("/books")},
		},
		Targets:     []profiles.Target{{Authority: "shop.example:80", Weight: 9}, {Authority: "shop-canary.example:80", Weight: 1}},
		RetryBudget: &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
	}
}

// backend is a server with a delay that slow multiplies.
func backend(t *testing.T, pod string, slow float64) resolve.Endpoint {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "session="+secret)
		w.Header().Set("Content-Type", "application/json")
		took := time.Duration(slow * rand.ExpFloat64() * float64(3*time.Millisecond))
		if strings.HasPrefix(r.URL.Path, "/search") {
			took *= 12
		}
		select {
		case <-time.After(took):
		case <-r.Context().Done():
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/checkout") && rand.IntN(12) == 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/missing"):
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 64+rand.IntN(4000)))
	}))
	t.Cleanup(srv.Close)
	return place(t, srv.Listener.Addr().String(), pod)
}

// refusing returns an endpoint that refuses connections.
func refusing(t *testing.T, pod string) resolve.Endpoint {
	t.Helper()
	return place(t, freeport.Addr(t), pod)
}

func place(t *testing.T, addr, pod string) resolve.Endpoint {
	t.Helper()
	es, err := static.Endpoints(addr)
	require.NoError(t, err)
	es[0].Labels = map[string]string{"pod": pod, "namespace": "books"}
	return es[0]
}

func (tn *testProxy) describe() layer.Node { return layer.Describe(tn.svc) }

// evil is a path that would run a script if it were used as markup.
const evil = `/%3Cimg%20src=x%20onerror=alert(1)%3E`

// traffic sends requests until the test ends, each client one at a time.
func (tn *testProxy) traffic(t *testing.T, clients int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				_, _ = tn.send(ctx, client, anything())
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		transport.CloseIdleConnections()
	})
}

// anything is a method, a host and a path, some of them more often than others.
func anything() string {
	choices := []string{
		"GET shop.example /books", "GET shop.example /books", fmt.Sprintf("GET shop.example /books/%d", 1+rand.IntN(6)),
		fmt.Sprintf("GET shop.example /books/%d", 1+rand.IntN(6)), "POST shop.example /checkout", "GET shop.example /search",
		"GET reviews.example /api/v1/reviews/latest", "GET reviews.example /api/v1/reviews/latest", "POST reviews.example /api/v1/reviews",
		"DELETE reviews.example /api/v1/reviews/17", "GET shop.example /missing", "GET reviews.example " + evil,
		"PUT shop.example /a/path/that/is/so/long/that/there/is/no/place/for/all/of/it/on/most/screens/of/the/world",
	}
	return choices[rand.IntN(len(choices))]
}

func (tn *testProxy) send(ctx context.Context, client *http.Client, what string) (int, error) {
	part := strings.Fields(what)
	r, err := http.NewRequestWithContext(ctx, part[0], tn.url+part[2], strings.NewReader("hello"))
	if err != nil {
		return 0, err
	}
	r.Host = part[1]
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Cookie", "session="+secret)
	r.Header.Set("X-Request-ID", fmt.Sprintf("%016x", rand.Uint64()))
	rsp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer rsp.Body.Close()
	_, _ = io.Copy(io.Discard, rsp.Body)
	return rsp.StatusCode, nil
}
