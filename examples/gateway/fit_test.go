package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// fitTarget is the target of the clients that name one.
const fitTarget = "web.test:80"

// documents serves one document for all targets, by long polling.
type documents struct {
	mu      sync.Mutex
	text    string
	version int
	changed chan struct{}
	asked   map[string]bool // targets
}

func (d *documents) set(t *testing.T, text string) {
	t.Helper()
	require.True(t, json.Valid([]byte(text)))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed != nil {
		close(d.changed)
	}
	d.text, d.changed = text, make(chan struct{})
	d.version++
}

func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.asked[strings.TrimPrefix(r.URL.Path, "/")] = true
	changed := d.changed
	current := r.Header.Get("If-None-Match") == strconv.Itoa(d.version)
	d.mu.Unlock()
	if current {
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-time.After(10 * time.Second):
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("ETag", strconv.Itoa(d.version))
	_, _ = io.WriteString(w, d.text)
}

// version returns the address of a server that responds with its name and with what routes have set. It
// fails every second request below /flaky.
func version(t *testing.T, name string) string {
	t.Helper()
	var flaky atomic.Int64
	return serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/flaky") && flaky.Add(1)%2 == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/slow"):
			_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the connection only then
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, name+" "+r.Header.Get("X-Route"))
		}
	})
}

// throughSidecar returns a client whose requests a sidecar sends. The profiles come from source, and the
// endpoints of their backends from resolver.
func throughSidecar(t *testing.T, source *longPoll, resolver resolve.Resolver) *http.Client {
	t.Helper()
	s, err := settings.Read(func(name string) (string, bool) {
		v, ok := map[string]string{
			"DESTINATION_SVC_ADDR": "127.0.0.1:1", // nothing asks it
			"OUTBOUND_LISTEN_ADDR": "127.0.0.1:0", "INBOUND_LISTEN_ADDR": "127.0.0.1:0",
			"ADMIN_LISTEN_ADDR": "127.0.0.1:0", "CONTROL_LISTEN_ADDR": "127.0.0.1:0",
			"DESTINATION_PROFILE_INITIAL_TIMEOUT": "60s", // on a busy machine
		}[strings.TrimPrefix(name, settings.Prefix)]
		return v, ok
	})
	require.NoError(t, err)
	p, err := sidecar.New(sidecar.Config{Settings: s, Profiles: source, Resolver: resolver}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return clientAt(t, p.Addr)
}

// clientAt returns a client that sends all requests to the proxy or gateway at addr.
func clientAt(t *testing.T, addr string) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// outcome returns the body of the response to a request, with the field X-Changed of its header, or its
// status. A timeout of the client has the status with which a proxy responds to it.
func outcome(t *testing.T, c *http.Client, request string, fields ...string) string {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+fitTarget+path, strings.NewReader("body"))
	if !assert.NoError(t, err) {
		return ""
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	rsp, err := c.Do(req)
	if err != nil {
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return "504"
		}
		return err.Error()
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	if err != nil || rsp.StatusCode != http.StatusOK {
		return strconv.Itoa(rsp.StatusCode)
	}
	return strings.TrimSpace(string(body) + " " + rsp.Header.Get("X-Changed"))
}

// A source that is not a part of gotower, [longPoll], drives a client, the sidecar and the gateway alike:
// they follow its routes, and a change of them, while requests flow.
func TestSourceFits(t *testing.T) {
	v1, v2 := version(t, "v1"), version(t, "v2")
	d := &documents{asked: make(map[string]bool)}
	d.set(t, `{"routes": [
		{"name": "orders", "prefix": "/flaky/orders", "method": "POST", "retries": 3},
		{"name": "items", "prefix": "/flaky", "method": "PUT", "retries": 3},
		{"name": "flaky", "prefix": "/flaky"},
		{"name": "slow", "prefix": "/slow", "timeout": "20ms"},
		{"name": "beta", "prefix": "/shop", "header": {"x-user": "ada"}, "backends": {"web-v2": 1}},
		{"name": "both", "prefix": "/both", "backends": {"web-v1": 1, "web-v2": 1}},
		{"name": "shop", "prefix": "/shop", "requestHeader": {"x-route": "shop"}, "responseHeader": {"x-changed": "yes"}}
	], "split": {"web-v1": 1, "web-v2": 0}}`)
	api := httptest.NewServer(d)
	t.Cleanup(api.Close)
	source := &longPoll{client: api.Client(), base: api.URL + "/"}
	one, err := static.Endpoints(v1)
	require.NoError(t, err)
	two, err := static.Endpoints(v2)
	require.NoError(t, err)
	resolver := static.New(map[string][]resolve.Endpoint{"web-v1": one, "web-v2": two})

	web := httpclient.New(t.Context(), fitTarget, httpclient.WithProfiles(source), httpclient.WithResolver(resolver))
	gateway := startFrom(t, head+"routes: []\nservices:\n"+service("web-v1", v1)+service("web-v2", v2), source)
	clients := map[string]*http.Client{
		"client":  {Transport: web},
		"sidecar": throughSidecar(t, source, resolver),
		"gateway": clientAt(t, gateway.addresses["http"]),
	}
	t.Cleanup(clients["client"].CloseIdleConnections)
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			for request, want := range map[string]string{
				"GET /": "v1", "GET /shop/1": "v1 shop yes", "GET /slow": "504",
				"PUT /flaky/1": "v1", "GET /flaky/1": "503", "POST /flaky/orders": "503", // a POST is not idempotent
			} {
				failed := true
				for failed { // until the next attempt fails
					failed = outcome(t, c, "GET /flaky/odd") == "503"
				}
				assert.Equal(t, want, outcome(t, c, request), request)
			}
			assert.Equal(t, "v2", outcome(t, c, "GET /shop/1", "X-User: ada"))
			var seen []string
			for range 40 {
				seen = append(seen, outcome(t, c, "GET /both"))
			}
			slices.Sort(seen)
			assert.Equal(t, []string{"v1", "v2"}, slices.Compact(seen), "each has a share")
		})
	}

	// The split moves while requests flow. None of them fails, and none goes back after the first one.
	var flowing sync.WaitGroup
	t.Cleanup(flowing.Wait) // the test's context has ended then
	moved := make(map[string]chan struct{})
	for name, c := range clients {
		moved[name] = make(chan struct{})
		flowing.Go(func() {
			old := "v1 shop yes"
			for got := old; got == old; {
				got = outcome(t, c, "GET /shop/1")
				assert.Contains(t, []string{old, "v2 store"}, got, name)
			}
			for range 20 {
				assert.Equal(t, "v2 store", outcome(t, c, "GET /shop/1"), name)
			}
			close(moved[name])
		})
	}
	d.set(t, `{"routes": [{"name": "shop", "prefix": "/shop", "requestHeader": {"x-route": "store"}}], "split": {"web-v2": 1}}`)
	for name := range clients {
		select {
		case <-moved[name]:
		case <-time.After(2 * time.Minute):
			require.Fail(t, fmt.Sprintf("the %s does not follow the change", name))
		}
	}
	flowing.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Equal(t, map[string]bool{fitTarget: true, target: true}, d.asked)
}
