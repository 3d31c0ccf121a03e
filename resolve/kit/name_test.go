package kit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/sd"
	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/kit"
	"github.com/gotower/gotower/resolve/static"
)

func addresses(addrs ...string) (list []resolve.Endpoint) {
	for _, addr := range addrs {
		list = append(list, resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(addr)}})
	}
	return list
}

// Names and URLs are looked up, and their endpoints follow the changes of the look-up.
func TestNames(t *testing.T) {
	names := static.New(map[string][]resolve.Endpoint{"web.test:80": addresses("10.0.0.1:80", "10.0.0.2:80"), "secure.test:443": addresses("10.0.0.3:443")})
	r := kit.New(func(string) (sd.Instancer, error) {
		return sd.FixedInstancer{"web.test:80", "https://secure.test/path", "http://10.0.0.9:8080", "10.0.0.4:80", "late.test:80"}, nil
	}, kit.WithNames(names))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	latest := make(map[string]resolve.Endpoint)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u, err := range r.Resolve(ctx, "web") {
			if err != nil {
				continue
			}
			mu.Lock()
			clear(latest)
			for _, e := range u.Endpoints {
				latest[e.Addr.String()] = e
			}
			mu.Unlock()
		}
	}()
	has := func(addrs ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, addr := range addrs {
				if _, ok := latest[addr]; !ok {
					return false
				}
			}
			return len(latest) == len(addrs)
		}, time.Minute, time.Millisecond)
	}
	has("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:443", "10.0.0.4:80", "10.0.0.9:8080")
	mu.Lock()
	require.Equal(t, "secure.test", latest["10.0.0.3:443"].ServerName)
	require.Equal(t, "https://secure.test/path", kit.Instance(latest["10.0.0.3:443"]))
	require.Equal(t, "web.test:80", kit.Instance(latest["10.0.0.1:80"]))
	require.Equal(t, "10.0.0.4:80", kit.Instance(latest["10.0.0.4:80"]))
	require.Equal(t, "http://10.0.0.9:8080", kit.Instance(latest["10.0.0.9:8080"]))
	mu.Unlock()
	names.Set("web.test:80", addresses("10.0.0.7:80")...)
	names.Set("late.test:80", addresses("10.0.0.8:80")...)
	has("10.0.0.7:80", "10.0.0.8:80", "10.0.0.3:443", "10.0.0.4:80", "10.0.0.9:8080")
	cancel()
	<-done
	require.Panics(t, func() { kit.WithNames(nil) })
}

// An httpclient connects to the addresses of a name.
func TestNamesHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer s.Close()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	for _, instance := range []string{"localhost:" + port, "http://localhost:" + port + "/"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := kit.New(func(string) (sd.Instancer, error) { return sd.FixedInstancer{instance}, nil })
		c := &http.Client{Transport: httpclient.New(ctx, "web", httpclient.WithResolver(r))}
		rsp, err := c.Get("http://web/")
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		c.CloseIdleConnections()
		cancel()
	}
}

// A factory gets the text of each instance, as in go-kit, and each is one endpoint.
func TestOpaque(t *testing.T) {
	var urls []string
	for range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }))
		defer s.Close()
		urls = append(urls, strings.Replace(s.URL, "127.0.0.1", "localhost", 1))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resolver := kit.New(func(string) (sd.Instancer, error) { return sd.FixedInstancer(append(urls, "not a URL")), nil }, kit.WithParse(kit.Opaque))
	service := kitlayer.Factory[string, string](func(instance string) (endpoint.Endpoint, io.Closer, error) {
		u, err := url.Parse(instance)
		if err != nil || u.Host == "" {
			return nil, nil, errors.New("not a URL")
		}
		return kithttp.NewClient(http.MethodGet, u, kithttp.EncodeJSONRequest, func(_ context.Context, rsp *http.Response) (any, error) {
			text, err := io.ReadAll(rsp.Body)
			return string(text), err
		}).Endpoint(), nil, nil
	})
	svc := balance.Resolve(ctx, resolver, balance.Config{Target: "web", Policy: balance.Policy{Picker: balance.RoundRobin()}}, func(ctx context.Context, t discover.Target) layer.Service[string, string] {
		return service(ctx, kit.Instance(t.Endpoint))
	})
	require.NoError(t, svc.Ready(ctx))
	got := make(map[string]bool)
	for range 10 {
		host, err := svc.Call(ctx, "")
		require.NoError(t, err)
		got["http://"+host] = true
	}
	require.Len(t, svc.Snapshot(), 3)
	require.Equal(t, map[string]bool{urls[0]: true, urls[1]: true}, got)
	http.DefaultClient.CloseIdleConnections()
	for _, text := range []string{"10.0.0.1:80", "[::1]:80", "node-7", "a", "b"} {
		e, err := kit.Opaque(text)
		require.NoError(t, err)
		require.Equal(t, text, kit.Instance(e))
		require.NotZero(t, e.Addr.Port())
	}
	_, err := kit.Opaque("")
	require.Error(t, err)
}
