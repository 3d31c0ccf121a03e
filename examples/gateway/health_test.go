package main

import (
	"context"
	"crypto/tls"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/resolve"
)

// Requests fail as soon as every endpoint has failed, without the queue, which would hold them for an
// hour. The connection of the client stays open.
func TestEveryEndpointFailed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certtest.New(t, "books.example").Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "other.crt"))
	secured := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secured.Close)
	const queue = `queue: {maxWait: 1h}, connectTimeout: 50s`
	p := startFile(t, writeIn(t, dir, head+`
services:
- {name: refused, static: {addresses: ["127.0.0.1:1", "127.0.0.1:2"]}, `+queue+`}
- name: untrusted
  static: {addresses: ["`+secured.Listener.Addr().String()+`"]}
  tls: {serverName: example.com, caCertificates: other.crt}
  queue: {maxWait: 1h}
- {name: unknown, dns: {name: "none.invalid:80"}, `+queue+`}
routes:
- {name: refused, matches: [{path: {exact: /refused}}], backendRefs: [{name: refused}]}
- {name: retried, matches: [{path: {exact: /retried}}], backendRefs: [{name: refused}], retry: {attempts: 2}}
- {name: untrusted, matches: [{path: {exact: /untrusted}}], backendRefs: [{name: untrusted}]}
- {name: unknown, matches: [{path: {exact: /unknown}}], backendRefs: [{name: unknown}]}
- {name: split, matches: [{path: {exact: /split}}], backendRefs: [{name: refused}, {name: unknown}]}
- {name: rpc, matches: [{grpc: {method: Check}}], backendRefs: [{name: refused}]}
`))
	for _, path := range []string{"/refused", "/retried", "/untrusted", "/unknown", "/split"} {
		for range 2 { // fresh, and after the failure
			for _, method := range []string{"GET", "POST"} {
				a := p.get(t, method, path)
				assert.Equal(t, 503, a.StatusCode, path)
				assert.False(t, a.Close, path)
				assert.Contains(t, a.body, `"detail":"no endpoint of the service can be used"`, path)
			}
		}
	}
	conn, err := grpc.NewClient(p.addresses["http"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Equal(t, "no endpoint of the service can be used", status.Convert(err).Message())

	p.stop()
	require.NoError(t, p.ended())
	for _, text := range []string{
		`service=refused health="0 of 2 healthy" err="endpoint 127.0.0.1:`, `service=unknown health="0 of 0 healthy" err="`,
		`service=untrusted health="0 of 1 healthy" err="`,
	} {
		assert.Equal(t, 1, strings.Count(p.log.String(), text), "%s in %s", text, p.log)
	}
}

// The log has one line for each change of the health, and /readyz tells it. A service whose checks fail
// still gets requests, because the check may be wrong.
func TestServiceHealth(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	up := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/check" && broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	p := start(t, head+`
services:
- name: api
  static: {addresses: ["`+up+`"]}
  healthCheck: {path: /check, interval: 10ms, unhealthyThreshold: 1, timeout: 1m}
- {name: fixed, directResponse: {status: 200}}
routes:
- {name: all, backendRefs: [{name: api}]}
`)
	ready := func() answer {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/readyz", "")
		require.NoError(t, err)
		return a
	}
	until(t, func() bool { a := ready(); return a.StatusCode == 200 && a.body == "ok\n" })
	broken.Store(true)
	until(t, func() bool {
		a := ready()
		return a.StatusCode == 503 && a.body == "all services are down\napi: 0 of 1 healthy\n"
	})
	assert.Equal(t, 200, p.get(t, "GET", "/").StatusCode)
	broken.Store(false)
	until(t, func() bool { return ready().StatusCode == 200 })
	p.stop()
	require.NoError(t, p.ended())
	assert.Regexp(t, `(?s)level=WARN msg="the service has unhealthy endpoints" service=api health="0 of 1 healthy" err=.*`+
		`level=INFO msg="all endpoints of the service are healthy" service=api health="1 of 1 healthy"`, p.log.String())
	assert.Equal(t, 2, strings.Count(p.log.String(), "service=api"), p.log)
}

// A gateway with one of two services down is ready, and names that service.
func TestReadyWithOneServiceDown(t *testing.T) {
	t.Parallel()
	p := start(t, head+"services:\n"+service("up", backend(t, "a"))+service("down", freeport.Addr(t))+`
routes:
- {name: down, matches: [{path: {exact: /down}}], backendRefs: [{name: down}]}
- {name: up, backendRefs: [{name: up}]}
`)
	assert.Equal(t, 503, p.get(t, "GET", "/down").StatusCode)
	until(t, func() bool {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/readyz", "")
		require.NoError(t, err)
		return a.StatusCode == 200 && a.body == "ok\ndown: 0 of 1 healthy\n"
	})
}

// The metrics have the result of each reload, the certificates, the open connections and the build.
func TestStateMetrics(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert := certtest.New(t, "books.example")
	cert.Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	text := strings.Replace(head, `[{name: http, address: "127.0.0.1:0"}]`, `
- {name: https, address: "127.0.0.1:0", protocol: HTTPS, tls: {certificates: [{certificateChain: books.crt, privateKey: books.key}]}}`, 1)
	p := startFile(t, writeIn(t, dir, text+"routes: []\n"))
	metrics := func() string {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
		require.NoError(t, err)
		return a.body
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: cert.Pool(), ServerName: "books.example"}}).
		DialContext(t.Context(), "tcp", p.addresses["https"])
	require.NoError(t, err)
	until(t, func() bool { return strings.Contains(metrics(), "gateway_open_connections{listener=\"https\"} 1\n") })
	require.NoError(t, conn.Close())
	until(t, func() bool { return strings.Contains(metrics(), "gateway_open_connections{listener=\"https\"} 0\n") })

	page := metrics()
	assert.Regexp(t, `gateway_build_info\{goversion="go1[^"]+",revision="[^"]*",version="[^"]*"\} 1\n`, page)
	assert.Contains(t, page, "gateway_config_last_reload_successful 1\n")
	leaf := cert.TLS(t).Leaf
	assert.Contains(t, page, `gateway_certificate_not_after_timestamp_seconds{listener="https",name="books.example",serial="`+
		leaf.SerialNumber.Text(16)+`"} `)

	p.replace(t, "listeners: {")
	until(t, func() bool { return strings.Contains(metrics(), "gateway_config_last_reload_successful 0\n") })
	p.replace(t, text+"routes: [{name: all, directResponse: {status: 200}}]\n")
	until(t, func() bool { return strings.Contains(metrics(), "gateway_config_last_reload_successful 1\n") })
	page = metrics()
	assert.Contains(t, page, `gateway_config_reloads_total{result="failure"} 1`+"\n")
	assert.Contains(t, page, `gateway_config_reloads_total{result="success"} 1`+"\n")
}

// A service that is scaled to zero does not make the gateway unready, and one that cannot be resolved does.
func TestReadyWithoutEndpoints(t *testing.T) {
	t.Parallel()
	h := newHealth("api", slog.New(slog.DiscardHandler))
	status := func() int {
		w := httptest.NewRecorder()
		writeHealth(w, map[config.Name]*upstream{"api": {health: h}})
		return w.Code
	}
	assert.Equal(t, 200, status(), "not resolved yet")
	h.follow(func() []balance.EndpointState { return nil })
	h.event(balance.Event{Kind: balance.TargetDown, Err: discover.ErrNoEndpoints})
	assert.Equal(t, 200, status())
	h.event(balance.Event{Kind: balance.TargetDown, Err: discover.ErrDoesNotExist})
	assert.Equal(t, 503, status())
	h.event(balance.Event{Kind: balance.TargetUp})
	assert.Equal(t, 200, status())
	failing := h.watch(resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) { yield(resolve.Update{}, errors.New("no server")) }
	}))
	for range failing.Resolve(t.Context(), "api") {
		assert.Equal(t, 503, status(), "DNS fails")
	}
}
