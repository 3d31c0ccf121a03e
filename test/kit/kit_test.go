package kit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/sd"
	"github.com/go-kit/kit/sd/lb"
	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/resolve/kit"
)

// caller sends a request to one of the service's instances, and returns the instance's name.
type caller func(ctx context.Context) (name string, err error)

// Instances are registered, followed and deregistered. While the registry is down, requests go to
// the known instances. After it restarts, further ones are found. No request fails.
func TestRegistry(t *testing.T) {
	for name, newRegistry := range map[string]func(*testing.T) registry{"etcd": newEtcd, "ZooKeeper": newZooKeeper} {
		t.Run(name, func(t *testing.T) {
			reg := newRegistry(t)
			reg.start(t)
			t.Cleanup(func() { _ = reg.running.Process.Kill() })
			deregister := reg.register(t, serve(t, "address"))
			callers := map[string]caller{
				"httpclient": overHTTP(t, reg),
				"kitlayer":   overFactory(t, reg),
			}
			expect := func(names ...string) {
				for title, call := range callers {
					expectNames(t, title, call, names)
				}
			}
			expect("address")
			_, port, ok := strings.Cut(serve(t, "name"), ":")
			require.True(t, ok)
			reg.register(t, "localhost:"+port)
			reg.register(t, "http://"+serve(t, "url"))
			expect("address", "name", "url")
			deregister()
			expect("name", "url")
			reg.kill(t)
			expect("name", "url")
			if reg.restarts {
				reg.start(t)
				reg.register(t, serve(t, "later"))
				expect("later", "name", "url")
			}
		})
	}
}

// expectNames makes calls until the most recent ones were served by exactly the instances with
// these names.
func expectNames(t *testing.T, title string, call caller, names []string) {
	t.Helper()
	const calls = 50
	var last []string
	require.Eventually(t, func() bool {
		name, err := call(t.Context())
		require.NoError(t, err, title)
		last = append(last, name)
		last = last[max(0, len(last)-calls):]
		return len(last) == calls && slices.Equal(slices.Compact(slices.Sorted(slices.Values(last))), names)
	}, time.Minute, time.Millisecond, "%s: want %v, got %v", title, names, &last)
}

func serve(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// overHTTP returns a caller that uses httpclient, which looks up the instances.
func overHTTP(t *testing.T, reg registry) caller {
	t.Helper()
	resolver := kit.New(func(string) (sd.Instancer, error) { return reg.instancer() })
	web := httpclient.New(t.Context(), "web", httpclient.WithResolver(resolver), httpclient.WithWaitForReady(),
		httpclient.WithQueue(1, time.Minute), httpclient.WithPolicy(balance.Policy{Picker: balance.RoundRobin()}))
	return func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", http.NoBody)
		if err != nil {
			return "", err
		}
		rsp, err := (&http.Client{Transport: web}).Do(req)
		if err != nil {
			return "", err
		}
		return decode(ctx, rsp)
	}
}

// overFactory returns a caller that uses a go-kit factory, which gets each instance's text, and
// go-kit's lb.Balancer.
func overFactory(t *testing.T, reg registry) caller {
	t.Helper()
	resolver := kit.New(func(string) (sd.Instancer, error) { return reg.instancer() }, kit.WithParse(kit.Opaque))
	service := kitlayer.Factory[string, string](factory)
	balancer := balance.Resolve(t.Context(), resolver, balance.Config{Target: "web", Policy: balance.Policy{Picker: balance.RoundRobin()}}, func(ctx context.Context, target discover.Target) layer.Service[string, string] {
		return service(ctx, kit.Instance(target.Endpoint))
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, balancer.Ready(ctx))
	retry := lb.Retry(3, time.Minute, kitlayer.Balancer(balancer))
	return func(ctx context.Context) (string, error) {
		name, err := retry(ctx, "")
		if err != nil {
			return "", err
		}
		return name.(string), nil
	}
}

// factory makes a go-kit client for an instance, which is an address or a URL.
func factory(instance string) (endpoint.Endpoint, io.Closer, error) {
	if !strings.Contains(instance, "://") {
		instance = "http://" + instance
	}
	u, err := url.Parse(instance)
	if err != nil {
		return nil, nil, err
	}
	encode := func(context.Context, *http.Request, any) error { return nil }
	decodeAny := func(ctx context.Context, rsp *http.Response) (any, error) { return decode(ctx, rsp) }
	return kithttp.NewClient(http.MethodGet, u, encode, decodeAny).Endpoint(), nil, nil
}

// decode returns the name of the instance that sent rsp.
func decode(_ context.Context, rsp *http.Response) (string, error) {
	text, err := io.ReadAll(rsp.Body)
	if err == nil {
		err = rsp.Body.Close()
	}
	return string(text), err
}
