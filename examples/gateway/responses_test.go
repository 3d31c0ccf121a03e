package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// counts has the number of requests by their route and final status, such as "books 200". The status of
// gRPC follows it: "books 200/14".
type counts map[string]int

// add counts n requests, except those of the route "probe".
func (c counts) add(n int, route string, status any, grpc string) {
	if route == "probe" {
		return
	}
	key := fmt.Sprint(route, " ", status)
	if grpc != "" {
		key += "/" + grpc
	}
	c[key] += n
}

func (c counts) total() (sum int) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// logged returns the requests in the access log.
func logged(t *testing.T, p *process) counts {
	t.Helper()
	all := make(counts)
	for line := range strings.Lines(p.log.String()) {
		var entry struct {
			Status int
			Route  string
			GRPC   string `json:"grpc_status"`
		}
		if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "\n") {
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			all.add(1, entry.Route, entry.Status, entry.GRPC)
		}
	}
	return all
}

// measured returns the requests in the metrics.
func measured(t *testing.T, p *process) counts {
	t.Helper()
	all := make(counts)
	metrics, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
	require.NoError(t, err)
	series := regexp.MustCompile(`gateway_responses_total\{code="(\d+)",grpc_status="(\d*)",listener="\w+",route="(\w*)"\} (\d+)`)
	for _, m := range series.FindAllStringSubmatch(metrics.body, -1) {
		n, err := strconv.Atoi(m[4])
		require.NoError(t, err)
		all.add(n, m[3], m[1], m[2])
	}
	return all
}

// observers watch the requests of a gateway by its tap and its page.
type observers struct {
	mu   sync.Mutex
	tap  counts             // by the events of tap
	top  *tappb.TopResponse // rows by route
	page struct {
		Rows []pageRow
		Sum  pageRow
	} // the last frame of the page
	seen map[tap.StreamID]*tap.Event // with the parts of all events so far
}

// pageRow is a row of the page.
type pageRow struct {
	Direction, Route, Path string
	Count, Successes       int
}

// observe starts observers of p, whose tap is at the address taps, and waits until they see requests.
func observe(t *testing.T, p *process, taps string) *observers {
	t.Helper()
	o := &observers{tap: make(counts), seen: make(map[tap.StreamID]*tap.Event)}
	conn, err := grpc.NewClient(taps, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = conn.Close()
	})
	probed, see := context.WithCancel(ctx)
	running.Go(func() {
		for e, err := range tap.Watch(ctx, conn, &tappb.WatchRequest{Explain: true}) {
			if err == nil && o.add(&e) == "probe" {
				see()
			}
		}
	})
	running.Go(func() {
		for rows, err := range tap.Top(ctx, conn, &tappb.TopRequest{ByRoute: true, Every: durationpb.New(100 * time.Millisecond)}) {
			if err == nil {
				o.mu.Lock()
				o.top = rows
				o.mu.Unlock()
			}
		}
	})
	running.Go(func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addresses["admin"]+"/live", http.NoBody)
		if err != nil {
			return
		}
		rsp, err := p.client.Do(req)
		if err != nil {
			return
		}
		defer rsp.Body.Close()
		for lines := bufio.NewReader(rsp.Body); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				o.mu.Lock()
				_ = json.Unmarshal(data, &o.page) // the first event has other fields
				o.mu.Unlock()
			}
		}
	})
	until(t, func() bool {
		p.get(t, "GET", "/probe")
		o.mu.Lock()
		defer o.mu.Unlock()
		return probed.Err() != nil && o.top != nil && len(o.top.GetRows()) > 0 && len(o.page.Rows) > 0
	})
	return o
}

// add adds a request of a client when its last event arrives, and returns its route.
func (o *observers) add(e *tap.Event) (route string) {
	if e.Direction != tap.Inbound {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.seen[e.ID]
	if all == nil {
		all = e
		o.seen[e.ID] = e
	}
	route = e.RouteLabels["route"]
	switch {
	case e.ResponseInit != nil:
		all.ResponseInit = e.ResponseInit
	case e.ResponseEnd != nil:
		all.ResponseEnd = e.ResponseEnd
		status, code := 0, ""
		if all.ResponseInit != nil {
			status = all.ResponseInit.Status
		}
		if e.ResponseEnd.GRPCStatus != nil {
			code = strconv.Itoa(int(*e.ResponseEnd.GRPCStatus))
		}
		o.tap.add(1, route, status, code)
	}
	return route
}

func (o *observers) total() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tap.total()
}

// explained returns the explanation of an ended request with the path.
func (o *observers) explained(path string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.seen {
		if e.RequestInit != nil && e.RequestInit.Path == path && e.ResponseEnd != nil {
			return fmt.Sprint(e.ResponseEnd.Explanation)
		}
	}
	return ""
}

// routes returns the number of requests by route in rows by route, and in those of the page.
func (o *observers) routes() (top, page map[string]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	top, page = make(map[string]int), make(map[string]int)
	for _, r := range o.top.GetRows() {
		if tap.Direction(r.GetDirection()) == tap.Inbound && r.GetRoute() != "probe" {
			top[strings.TrimPrefix(r.GetRoute(), "[DEFAULT]")] += int(r.GetCount())
		}
	}
	for _, r := range o.page.Rows {
		if r.Direction == "inbound" && r.Path != "/probe" {
			page[r.Route] += r.Count
		}
	}
	return top, page
}

// mixedLoad is a configuration with a route for each status of TestSumsAgree.
const mixedLoad = `
listeners:
- {name: http, address: "127.0.0.1:0"}
- {name: slow, address: "127.0.0.1:0", requestHeadersTimeout: 200ms}
- {name: idle, address: "127.0.0.1:0", requestBodyIdleTimeout: 200ms}
admin: {address: "127.0.0.1:0", tap: "TAP"}
services:
- {name: up, static: {addresses: ["UP"]}}
- {name: rpc, static: {addresses: ["RPC"]}}
- {name: closed, static: {addresses: ["127.0.0.1:1"]}}
routes:
- {name: probe, matches: [{path: {exact: /probe}}], directResponse: {status: 200}}
- {name: ok, matches: [{path: {exact: /ok}}], directResponse: {status: 200}}
- {name: moved, matches: [{path: {exact: /moved}}], requestRedirect: {path: {replaceFullPath: /ok}, statusCode: 301}}
- {name: private, matches: [{path: {prefix: /private}}], backendRefs: [{name: up}], externalAuth: {backendRef: {name: up}, path: /auth}}
- name: limited
  matches: [{path: {exact: /limited}}]
  backendRefs: [{name: up}]
  rateLimit: {requestsPerSecond: 0.001, burst: 1, per: Client}
- {name: late, matches: [{path: {exact: /late}}], backendRefs: [{name: up}], timeouts: {request: 50ms}}
- {name: closed, matches: [{path: {exact: /closed}}], backendRefs: [{name: closed}]}
- {name: check, matches: [{grpc: {service: grpc.health.v1.Health, method: Check}}], backendRefs: [{name: rpc}]}
- {name: watch, matches: [{grpc: {method: Watch}}], backendRefs: [{name: closed}]}
- {name: up, matches: [{path: {prefix: /up}}], backendRefs: [{name: up}]}
`

// The access log, the metrics, tap and the page have every request with the route and the status that
// its client got, also without a route, refused by the parser, and without a client.
func TestSumsAgree(t *testing.T) {
	waiting, taps := make(chan struct{}, 1), freeport.Addr(t)
	up := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/up/wait":
			waiting <- struct{}{}
			<-r.Context().Done()
		case "/late":
			<-r.Context().Done()
		case "/up/broken":
			panic(http.ErrAbortHandler)
		case "/up/large":
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		case "/auth":
			status, _ := strconv.Atoi(path.Base(r.Header.Get("X-Forwarded-Uri")))
			w.WriteHeader(status)
		}
	})
	p := start(t, strings.NewReplacer("TAP", taps, "UP", up, "RPC", healthServer(t)).Replace(mixedLoad))
	o := observe(t, p, taps)
	want := counts{
		"ok 200": 2, "moved 301": 1, "private 200": 1, "private 401": 1, "private 403": 1, " 404": 3, "up 413": 1, "limited 200": 1,
		"limited 429": 2, "up 499": 1, "up 502": 1, "closed 503": 2, "late 504": 1, "check 200/0": 1, "check 200/5": 1, "watch 200/14": 1,
		" 400": 2, " 431": 1, " 505": 1, " 408": 1, "up 408": 1,
	}
	for path, status := range map[string]int{
		"/moved": 301, "/private/200": 200, "/private/401": 401, "/private/403": 403, "/none": 404, "/up/large": 413, "/limited": 200,
		"/up/broken": 502, "/closed": 503, "/late": 504,
	} {
		assert.Equal(t, status, p.get(t, "GET", path).StatusCode, path)
	}
	assert.Equal(t, 503, p.get(t, "POST", "/closed").StatusCode)
	for range 2 {
		assert.Equal(t, 200, p.get(t, "GET", "/ok").StatusCode)
		assert.Equal(t, 404, p.get(t, "HEAD", "/none").StatusCode)
		assert.Equal(t, 429, p.get(t, "GET", "/limited").StatusCode)
	}
	askHealth(t, p.addresses["http"])
	leave(t, p, "/up/wait", waiting)
	for _, text := range []string{
		"GET /ok HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n", "GET /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"GET /ok HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("b", 4<<20) + "\r\n\r\n", "GET /ok HTTP/3.0\r\nHost: a\r\n\r\n",
	} {
		p.raw(t, text)
	}
	p.addresses["http"] = p.addresses["slow"]
	assert.Contains(t, p.raw(t, "GET /ok HTTP/1.1\r\nHost: a\r\n"), "HTTP/1.1 408")
	p.addresses["http"] = p.addresses["idle"]
	assert.Contains(t, p.raw(t, "POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\na"), "HTTP/1.1 408")

	routes := make(map[string]int)
	for key, n := range want {
		route, _, _ := strings.Cut(key, " ")
		routes[route] += n
	}
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		top, page := o.routes()
		if all := min(logged(t, p).total(), measured(t, p).total(), o.total(), counts(top).total(), counts(page).total()); all >= want.total() {
			break
		}
	}
	assert.Equal(t, want, logged(t, p), "access log")
	assert.Equal(t, want, measured(t, p), "metrics")
	top, page := o.routes()
	assert.Equal(t, routes, top, "top")
	assert.Equal(t, routes, page, "page")
	assert.Contains(t, o.explained("/closed"), "connection refused")
	assert.Contains(t, o.explained("/none"), "no route")
	o.mu.Lock()
	defer o.mu.Unlock()
	assert.Equal(t, want, o.tap, "tap")
	inbound := pageRow{}
	for _, r := range o.page.Rows {
		if r.Direction == "inbound" {
			inbound.Count += r.Count
			inbound.Successes += r.Successes
		}
	}
	assert.Equal(t, inbound, o.page.Sum, "the totals have no attempts")
	assert.Equal(t, 6, inbound.Count-inbound.Successes, "502, 503, 504, 505 and UNAVAILABLE")
}

// healthServer returns the address of a gRPC server with the health service.
func healthServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// askHealth makes a call that succeeds, one with the status NOT_FOUND, and one to an endpoint that
// cannot be reached.
func askHealth(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "none"})
	assert.Equal(t, codes.NotFound, status.Code(err))
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	assert.Equal(t, "no endpoint of the service can be used", status.Convert(err).Message())
	assert.Equal(t, codes.Unavailable, status.Code(err))
}

// leave sends a request, and cancels it after a server has received it.
func leave(t *testing.T, p *process, path string, received <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-received
		time.Sleep(time.Second) // earlier, it would be a half-closed client
		cancel()
	}()
	_, err := p.send(ctx, "GET", "http://"+p.addresses["http"]+path, "")
	require.ErrorIs(t, err, context.Canceled)
}

// A connection whose TLS handshake fails is counted.
func TestConnectionErrors(t *testing.T) {
	dir := t.TempDir()
	certtest.New(t, "books.example").Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	p := startFile(t, writeIn(t, dir, `
listeners:
- {name: https, address: "127.0.0.1:0", protocol: HTTPS, tls: {certificates: [{certificateChain: books.crt, privateKey: books.key}]}}
admin: {address: "127.0.0.1:0", tap: "off"}
routes: []
`))
	conn, err := net.Dial("tcp", p.addresses["https"])
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	require.NoError(t, err)
	var got string
	until(t, func() bool {
		metrics, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
		require.NoError(t, err)
		got = metrics.body
		return strings.Contains(got, "gateway_connection_errors_total{")
	})
	assert.Regexp(t, `gateway_connection_errors_total\{error="[^"]+",listener="https"\} 1\n`, got)
}

// Errors of the gateway have the page of their status. Those of services keep their body.
func TestErrorPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "error.html"), []byte("<p>Sorry</p>"), 0o600))
	up := serverAt(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	p := startFile(t, writeIn(t, dir, strings.Replace(head, `:0"}]`, `:0", errorPages: [{codes: [400, 503], file: error.html}]}]`, 1)+`
services:
`+service("up", up)+service("closed", "127.0.0.1:1")+`
routes:
- {name: closed, matches: [{path: {exact: /closed}}], backendRefs: [{name: closed}]}
- {name: up, matches: [{path: {exact: /up}}], backendRefs: [{name: up}]}
`))
	for _, c := range []struct {
		path, body, contentType string
		status                  int
	}{
		{"/closed", "<p>Sorry</p>", "text/html; charset=utf-8", 503},
		{"/up", "", "", 503},
		{
			"/none", `{"type":"about:blank","title":"Not Found","status":404,"detail":"no route matches the request"}` + "\n",
			"application/problem+json", 404,
		},
	} {
		a := p.get(t, "GET", c.path)
		assert.Equal(t, c.status, a.StatusCode, c.path)
		assert.Equal(t, c.body, a.body, c.path)
		assert.Equal(t, c.contentType, a.Header.Get("Content-Type"), c.path)
	}
	malformed := p.raw(t, "GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n")
	assert.Contains(t, malformed, "HTTP/1.1 400 ")
	assert.Contains(t, malformed, "\r\nContent-Type: text/html; charset=utf-8\r\n")
	assert.Contains(t, malformed, "\r\n\r\n<p>Sorry</p>")
}

// Services cannot fill the memory with statuses.
func TestResponsesAreBounded(t *testing.T) {
	r := prometheus.NewRegistry()
	counted := newResponses(r, slog.New(slog.DiscardHandler))
	count := counted.of("http")
	call := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/a.B/C", http.NoBody)
	call.ProtoMajor = 2
	call.Header.Set("Content-Type", "application/grpc")
	for i := range 1000 {
		for _, status := range []string{strconv.Itoa(i), fmt.Sprintf("%02d", i), "text " + strconv.Itoa(i)} {
			count(&httplayer.Report{Status: i, Request: call, Response: &http.Response{Header: http.Header{"Grpc-Status": {status}}}})
		}
	}
	size := 0
	counted.counters.Range(func(any, any) bool { size++; return true })
	assert.LessOrEqual(t, size, 501*2+2*17, "counters")
	families, err := r.Gather()
	require.NoError(t, err)
	total := 0.0
	codes := make(map[string]bool)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue()
			for _, l := range m.GetLabel() {
				if l.GetName() == "grpc_status" {
					codes[l.GetValue()] = true
				}
			}
		}
	}
	assert.InDelta(t, 3000, total, 0)
	assert.Len(t, codes, 18, "0 to 16, and other")
}

// The tap has the route that the router chooses for a client behind a trusted proxy, as the access log has.
func TestTapHasRouteBehindProxy(t *testing.T) {
	taps := freeport.Addr(t)
	p := start(t, `
listeners: [{name: http, address: "127.0.0.1:0", trustedProxies: [127.0.0.0/8]}]
admin: {address: "127.0.0.1:0", tap: "`+taps+`"}
routes:
- {name: probe, matches: [{path: {exact: /probe}}], directResponse: {status: 200}}
- {name: inside, matches: [{clientCIDRs: [10.0.0.0/8]}], directResponse: {status: 200}}
- {name: rest, directResponse: {status: 200}}
`)
	o := observe(t, p, taps)
	p.get(t, "GET", "/", "X-Forwarded-For: 10.0.0.1")
	p.get(t, "GET", "/", "X-Forwarded-For: 11.0.0.1")
	want := counts{"inside 200": 1, "rest 200": 1}
	until(t, func() bool { return logged(t, p).total() == 2 && o.total() == 2 }) // both are written after the response
	assert.Equal(t, want, logged(t, p))
	o.mu.Lock()
	defer o.mu.Unlock()
	assert.Equal(t, want, o.tap)
}

// The tap has the route that a request takes after the rules of its listener, as the access log has. A request
// that they reject has none.
func TestTapHasRouteAfterRules(t *testing.T) {
	taps := freeport.Addr(t)
	p := start(t, `
listeners:
- {name: http, address: "127.0.0.1:0"}
- name: users
  address: "127.0.0.1:0"
  basicAuth: {users: ["emma:`+hash(t, "secret")+`"], forwardUsernameHeader: X-User}
- {name: none, address: "127.0.0.1:0", clientCIDRs: {deny: [127.0.0.0/8]}}
admin: {address: "127.0.0.1:0", tap: "`+taps+`"}
routes:
- {name: probe, matches: [{path: {exact: /probe}}], directResponse: {status: 200}}
- {name: emma, matches: [{headers: [{name: X-User, exact: emma}]}], directResponse: {status: 200}}
- {name: rest, directResponse: {status: 200}}
`)
	o := observe(t, p, taps)
	for _, c := range []struct {
		listener, field string
		status          int
	}{
		{"users", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("emma:secret")), 200},
		{"users", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("emma:guess")), 401},
		{"none", "X-User: emma", 403}, {"http", "X-User: anna", 200},
	} {
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses[c.listener]+"/", "", c.field)
		require.NoError(t, err)
		assert.Equal(t, c.status, a.StatusCode)
	}
	want := counts{"emma 200": 1, " 401": 1, " 403": 1, "rest 200": 1}
	until(t, func() bool { return logged(t, p).total() == 4 && o.total() == 4 }) // both are written after the response
	assert.Equal(t, want, logged(t, p))
	o.mu.Lock()
	defer o.mu.Unlock()
	assert.Equal(t, want, o.tap)
}

// The rules of a listener see each request once, also while somebody watches the tap.
func TestRulesSeeRequestOnce(t *testing.T) {
	c, err := config.Parse("gateway.yaml", []byte(head+"routes: [{name: all, directResponse: {status: 200}}]\n"))
	require.NoError(t, err)
	g, err := newGateway(t.Context(), c, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	var calls atomic.Int32
	rule := layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		calls.Add(1)
		return httplayer.HTTP{}.NewResponse(req, layer.DirectResponse{Status: http.StatusNotFound}), nil
	})
	g.acme.services.Store(&map[string]httplayer.Service{"books.example": rule})
	svc, opts := g.listenerService(&accessLog{format: "off"})(&c.Listeners[0])
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() { _ = tcplayer.Serve(ctx, socket, httplayer.NewServer(svc, opts...)) })
	routes := make(chan string, 1)
	running.Go(func() {
		for e, err := range g.tap.Watch(ctx, &tappb.WatchRequest{}) {
			if err == nil && e.RequestInit != nil {
				routes <- e.RouteLabels["route"]
			}
		}
	})
	until(t, g.tap.Watched)
	request := "GET /.well-known/acme-challenge/a HTTP/1.1\r\nHost: books.example\r\nConnection: close\r\n\r\n"
	p := &process{addresses: map[string]string{"http": socket.Addr().String()}}
	assert.Contains(t, p.raw(t, request), "HTTP/1.1 200")
	assert.Equal(t, "all", <-routes)
	assert.Equal(t, int32(1), calls.Load())
}
