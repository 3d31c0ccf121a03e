package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

func TestMain(m *testing.M) {
	largeSize = 64 << 10 // in the roles' processes too
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// The short form measures one protocol with small and one with large messages. The sidecar's layers
// allocate nothing for a request, but connections that open during the 30 ms of a run do. Therefore
// only one run of five must have few allocations.
func TestCompareShort(t *testing.T) {
	for range 5 {
		sidecar := compareShort(t)
		if sidecar < 20 {
			return
		}
		t.Logf("%.1f allocations of the whole sidecar for a request", sidecar)
	}
	t.Error("the whole sidecar has 20 or more allocations for a request")
}

// compareShort checks one comparison's tables. It returns the whole sidecar's largest number of
// allocations for a small request.
func compareShort(t *testing.T) (sidecar float64) {
	t.Helper()
	protocols, small, all := []string{http1Protocol, grpcUploadProtocol, clientProtocol}, 2, 4
	if os.Getenv("GOTOWER_TESTS") == "full" {
		protocols, small, all = []string{""}, 4, 9
	}
	var out bytes.Buffer
	for _, p := range protocols {
		require.NoError(t, compare(t.Context(), []string{"-short", "-only", p}, &out, t.Output()))
	}
	tables := strings.Split(out.String(), "\n\n|")[1:]
	require.Len(t, tables, all, out.String())
	for i, table := range tables {
		names := []string{"relay", "ReverseProxy", "library hop", "whole sidecar", "sidecar, access log", "two sidecars, mutual TLS"}
		if i == all-1 {
			names = []string{"net/http", "httpclient"}
		}
		for _, name := range names {
			row := regexp.MustCompile(`(?m)^\| ` + name + ` \| (.*) \|$`).FindStringSubmatch(table)
			require.NotNil(t, row, "no row of %s in %s", name, table)
			cells := strings.Split(row[1], " | ")
			requests, allocations := cells[len(cells)-4], cells[len(cells)-1]
			assert.Positive(t, number(t, requests), row[0])
			if name != "relay" {
				assert.Greater(t, number(t, allocations), 1.0, row[0])
			}
			if name == "whole sidecar" && i < small {
				sidecar = max(sidecar, number(t, allocations))
			}
			if runtime.GOOS == "linux" {
				assert.Positive(t, number(t, cells[0]), row[0])
				assert.Positive(t, number(t, cells[len(cells)-2]), row[0])
			}
		}
	}
	assert.NotContains(t, out.String(), "NaN")
	return sidecar
}

// Each installed gateway is measured in a short run with two reloads. No request to
// examples/gateway fails during the reloads.
func TestCompareGateways(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("needs GOTOWER_TESTS=full, because it builds examples/gateway")
	}
	var out bytes.Buffer
	require.NoError(t, compare(t.Context(), []string{"-gateways", "-short"}, &out, t.Output()))
	t.Log(out.String())
	tables := strings.Split(out.String(), "\n\n|")[1:]
	require.Len(t, tables, 3, out.String())
	for i, table := range tables {
		row := regexp.MustCompile(`(?m)^\| gateway \| (.*) \|$`).FindStringSubmatch(table)
		require.NotNil(t, row, table)
		cells := strings.Split(row[1], " | ")
		if i < 2 {
			assert.Positive(t, number(t, cells[0]), row[0])
			continue
		}
		assert.Positive(t, number(t, cells[2]), row[0])
		assert.Zero(t, number(t, cells[3]), row[0])
	}
}

// All gateways are configured with the same routes. examples/gateway accepts its configuration.
func TestGatewayFiles(t *testing.T) {
	s := gatewaySettings{dir: "/etc", listen: "127.0.0.1:1", admin: "127.0.0.1:2", backends: []string{"127.0.0.1:3", "127.0.0.1:4"}, routes: 30, generation: 7}
	for _, g := range gateways("") {
		all := ""
		for name, text := range g.files(s) {
			all += text
			if !strings.HasSuffix(name, ".conf") {
				assert.NoError(t, yaml.Unmarshal([]byte(text), new(any)), name)
			}
		}
		for i := range s.routes {
			assert.Equal(t, 1, strings.Count(all, routePath(i)), g.name)
		}
		assert.Contains(t, all, generationHeader, g.name)
		for _, address := range append(s.backends, s.listen, s.admin) {
			assert.Contains(t, all, address, g.name)
		}
	}
	c, err := config.Parse("gateway.yaml", []byte(gatewayFiles(s)["gateway.yaml"]))
	require.NoError(t, err)
	assert.Len(t, c.Routes, s.routes)
}

// The cells follow from known figures.
func TestGatewayTables(t *testing.T) {
	b := &bench{loops: gatewayLoops(20), reloads: 2, routes: 20, rounds: 1}
	full := sample{cpu: 20, p99: 100, rate: 5000, resident: 41.5}
	fixed := sample{cpu: 30, p99: 300, rate: gatewayRate}
	slow := sample{cpu: 900, p99: 90_000, rate: 500}
	b.targets = []target{{
		name:    "gateway",
		samples: map[loop][]sample{b.loops[0]: {full}, b.loops[1]: {fixed}, b.loops[2]: {slow}, b.loops[3]: {slow}},
		reloads: reloads{durations: []time.Duration{time.Second, 20 * time.Millisecond}, requests: 1000, failed: 1},
	}}
	var out bytes.Buffer
	b.printGateways(&out, "-gateways")
	for _, row := range []string{
		"| gateway | 5000 | 20.0 (20.0) | 100 | 41.5 | 30.0 | 300 |\n",
		"| gateway | 500 | 900.0 (900.0) | 90000 | 0.0 | – | only 500/s |\n",
		"| gateway | 1s | 1s | 1000 | 1 |\n",
	} {
		assert.Contains(t, out.String(), row)
	}
}

// number returns the first number in a cell.
func number(t *testing.T, cell string) float64 {
	t.Helper()
	first, _, _ := strings.Cut(cell, " ")
	n, err := strconv.ParseFloat(first, 64)
	require.NoError(t, err)
	return n
}

func TestCompareFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds 0":    "-rounds is 0; it must be in [1, 100]",
		"-duration 1h": "-duration is 1h0m0s; it must be in [1ms, 1m]",
		"-nonsense":    "flag provided but not defined: -nonsense",
	} {
		assert.ErrorContains(t, compare(t.Context(), strings.Fields(args), io.Discard, io.Discard), want)
	}
}

// The cells follow from the known figures of three rounds.
func TestTable(t *testing.T) {
	l := loop{http1Protocol, 0}
	b := &bench{targets: []target{
		{name: "relay", samples: map[loop][]sample{l: {{cpu: 12, p99: 100}, {cpu: 10, p99: 50}, {cpu: 20, p99: 90}}}},
		{name: "whole sidecar", isRole: true, samples: map[loop][]sample{l: {
			{cpu: 30, busy: 0.9, p99: 180, rate: 1000, allocations: 9}, {cpu: 18, busy: 1, p99: 400, rate: 900, allocations: 9.4, resident: 31},
			{cpu: 17, busy: 0.8, p99: 90, rate: 1100, allocations: 9.2, resident: 28.5},
		}}},
	}}
	var out bytes.Buffer
	b.table(&out, l)
	assert.Equal(t, `
HTTP/1.1, 64 requests at once:

| proxy | CPU µs (minimum) | × relay | p99 µs | × relay | requests/s | CPU busy | memory MiB | allocations |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| relay | 12.0 (10.0) | 1.00 | 90 | 1.00 | 0 | 0 % | 0.0 | – |
| whole sidecar | 18.0 (17.0) | 1.50 | 180 | 2.00 | 1000 | 90 % | 28.5 | 9.2 |
`, out.String())
}

// clients returns a client for each protocol.
func clients(t *testing.T) map[string]*http.Client {
	t.Helper()
	clients := make(map[string]*http.Client)
	for _, protocol := range []string{http1Protocol, grpcProtocol} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(protocol == http1Protocol)
		tr.Protocols.SetUnencryptedHTTP2(protocol == grpcProtocol)
		t.Cleanup(tr.CloseIdleConnections)
		clients[protocol] = &http.Client{Transport: tr, Timeout: time.Minute}
	}
	return clients
}

// net/http can read the backend's responses, even many on one connection.
func TestBackend(t *testing.T) {
	p, err := startRole(t.Context(), cpus(t), "backend")
	require.NoError(t, err)
	defer p.stop()
	for protocol, c := range clients(t) {
		for range 200 {
			method, body := http.MethodGet, ""
			if protocol == grpcProtocol {
				method, body = http.MethodPost, message(requestSize)
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.addr+"/", strings.NewReader(body))
			require.NoError(t, err)
			rsp, err := c.Do(req)
			require.NoError(t, err, protocol)
			text, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, http.StatusOK, rsp.StatusCode)
			if protocol == http1Protocol {
				require.Len(t, text, responseSize)
				continue
			}
			require.Equal(t, message(responseSize), string(text))
			require.Equal(t, http.Header{"Grpc-Status": {"0"}}, rsp.Trailer)
		}
	}
}

// Requests in the mesh use mutual TLS.
func TestMeshUsesTLS(t *testing.T) {
	backend, err := startRole(t.Context(), cpus(t), "backend")
	require.NoError(t, err)
	defer backend.stop()
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan *sidecar.Proxy, 1), make(chan error, 1)
	go func() { ended <- meshOf(ctx, backend.addr, func(client *sidecar.Proxy) { started <- client }) }()
	client := <-started
	for _, c := range clients(t) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+client.Addr+"/", nil)
		require.NoError(t, err)
		req.Host = name
		rsp, err := c.Do(req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, http.StatusOK, rsp.StatusCode)
	}
	rsp, err := http.Get("http://" + client.Admin + "/metrics")
	require.NoError(t, err)
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Regexp(t, `tcp_open_total\{.*server_id="server.cluster.local".*tls="true"`, string(text))
	cancel()
	<-ended
}

// cpus returns the CPUs for a test's processes.
func cpus(t *testing.T) []int {
	t.Helper()
	_, others, err := split()
	require.NoError(t, err)
	return others
}

// served serves a handler over both protocols.
func served(t *testing.T, h http.HandlerFunc) (addr string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// generator starts the load generator for a handler.
func generator(t *testing.T, protocol string, h http.HandlerFunc) *process {
	t.Helper()
	addr := served(t, h)
	p, err := startRole(t.Context(), cpus(t), "load", protocol, addr)
	require.NoError(t, err)
	t.Cleanup(p.stop) // before the server, which waits for its connections
	return p
}

// respond responds as the backend does.
func respond(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Content-Length", strconv.Itoa(responseSize))
		_, _ = w.Write(make([]byte, responseSize))
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	_, _ = io.WriteString(w, message(responseSize))
}

func TestLoadCountsRequests(t *testing.T) {
	for _, protocol := range []string{http1Protocol, grpcProtocol} {
		var served int
		requests := make(chan *http.Request, 1<<20)
		p := generator(t, protocol, func(w http.ResponseWriter, r *http.Request) {
			requests <- r
			respond(w, r)
		})
		for _, rate := range []int{0, 2000, 0} {
			var run summary
			require.NoError(t, p.ask(&run, rate, 0.05))
			served += run.Requests
			assert.Positive(t, run.P99)
		}
		assert.Len(t, requests, served, protocol)
		if r := <-requests; protocol == grpcProtocol {
			assert.Equal(t, http.MethodPost, r.Method)
			assert.Equal(t, "application/grpc", r.Header.Get("Content-Type"))
			assert.Equal(t, "trailers", r.Header.Get("TE"))
			assert.Equal(t, name, r.Host)
		}
	}
}

// In an open loop, the latency of a request that waits for a connection includes the wait.
func TestLoadOpenLoopCountsWaiting(t *testing.T) {
	const stall = 300 * time.Millisecond
	stalled := make(chan struct{})
	begin := sync.OnceFunc(func() { time.AfterFunc(stall, func() { close(stalled) }) })
	p := generator(t, http1Protocol, func(w http.ResponseWriter, r *http.Request) {
		begin()
		<-stalled
		respond(w, r)
	})
	var run summary
	require.NoError(t, p.ask(&run, 2000, 0.1))
	assert.GreaterOrEqual(t, run.P99, stall-100*time.Millisecond)
	assert.Greater(t, run.Requests, 3*atOnce/2)
}

func TestLoadRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		protocol string
		respond  http.HandlerFunc
		want     string
	}{
		"a status": {http1Protocol, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502 Bad Gateway"},
		"a long body": {http1Protocol, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(make([]byte, responseSize+1))
		}, "the response has 1025 bytes, want 1024"},
		"a call without trailers": {grpcProtocol, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, message(responseSize))
		}, "a stream ended by a frame of type 0"},
		"a short message": {grpcProtocol, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
			_, _ = io.WriteString(w, message(responseSize)[1:])
		}, "after 1028 bytes, want trailers after 1029"},
		"a reset": {grpcProtocol, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "a frame of type 3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := generator(t, tt.protocol, tt.respond)
			assert.ErrorContains(t, p.ask(new(summary), 0, 0.01), tt.want)
		})
	}
}

func TestProcessFailure(t *testing.T) {
	_, err := startRole(t.Context(), cpus(t), "load", http1Protocol, "127.0.0.1:1")
	require.ErrorContains(t, err, "load ended with exit status 1")
	require.ErrorContains(t, err, "connection refused")

	p, err := startRole(t.Context(), cpus(t), "relay", http1Protocol, "127.0.0.1:1")
	require.NoError(t, err)
	_, err = p.usage()
	require.NoError(t, err)
	p.stop()
	_, err = p.usage()
	require.ErrorContains(t, err, "relay ended with signal: killed")
}
