package sidecar_test

import (
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// Both proxies in a mesh export metrics about a request, which all clients may read.
func TestH1AndH6MetricsOfBothSides(t *testing.T) {
	app := backend(t, "app")
	m := newMesh(t, app, speaksH2)
	w := dialWire(t, m.a.Addr)
	first, _, _ := w.ask(t, "GET / HTTP/1.1\nHost: web.example\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.NoError(t, w.Close())

	_, port, err := net.SplitHostPort(app)
	require.NoError(t, err)
	const (
		authz = `authz_group="",authz_kind="default",authz_name="all-unauthenticated",`
		route = `route_group="",route_kind="default",route_name="default",`
	)
	srv := `srv_group="",srv_kind="default",srv_name="all-unauthenticated",srv_port="` + port + `",`
	for p, want := range map[*testProxy][]string{
		m.a: {
			`request_total{authority="web.example:80",direction="outbound",`, `server_id="` + serverName + `"`,
			`response_total{authority="web.example:80",classification="success",direction="outbound",`,
			`tcp_open_total{direction="outbound",`, `tcp_close_total{direction="outbound",`, `tcp_read_bytes_total{`, `tcp_write_bytes_total{`,
			`tcp_open_connections{`, `process_start_time_seconds `, // H5
			`tcp_close_total{direction="outbound",errno="",no_tls_reason="loopback",peer="src",target_addr="` + service + `"`,
			`outbound_http_balancer_endpoints{backend_group="",backend_kind="default",backend_name="web.example",`,
		},
		m.b: {
			`request_total{` + authz + `client_id="` + clientName + `",direction="inbound",` + route + srv,
			`response_total{` + authz + `classification="success",client_id="` + clientName + `",direction="inbound",` + route + srv,
			`tcp_open_total{client_id="` + clientName + `",direction="inbound",peer="src",` + srv + `target_addr="` + app + `"`,
			`tcp_open_total{direction="inbound",no_tls_reason="loopback",peer="dst",target_addr="` + app + `"`,
			`inbound_http_authz_allow_total{` + authz + `client_id="` + clientName +
				`",` + route + srv + `target_addr="` + app + `"`,
		},
	} {
		control := h1Client(t, p.Admin)
		p.metrics(t, func(t require.TestingT, text string) {
			for _, part := range want {
				require.Contains(t, text, part)
			}
		})
		_, text := get(t, control, "http://"+p.Admin+"/metrics")
		for line := range strings.Lines(text) { // H4
			require.NotContains(t, line, ",,")
			require.NotContains(t, line, ",}")
			require.NotContains(t, line, "{,")
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Admin+"/metrics", http.NoBody) // H7
		require.NoError(t, err)
		req.Header.Set("Accept-Encoding", "gzip")
		rsp, err := control.Do(req)
		require.NoError(t, err)
		require.Equal(t, "gzip", rsp.Header.Get("Content-Encoding"))
		packed, err := gzip.NewReader(rsp.Body)
		require.NoError(t, err)
		unpacked, err := io.ReadAll(packed)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Contains(t, string(unpacked), "request_total{")
	}
}

// counted waits until the metrics contain a line with this name, value and all of labels.
func counted(t *testing.T, p *testProxy, name string, value float64, labels ...string) {
	t.Helper()
	p.metrics(t, func(t require.TestingT, text string) {
		got, ok := valueOf(text, name, labels...)
		require.True(t, ok, "%s %v in\n%s", name, labels, text)
		require.InDelta(t, value, got, 0, "%s %v", name, labels)
	})
}

// valueOf returns the sum of all lines with this name and all of labels.
func valueOf(text, name string, labels ...string) (sum float64, ok bool) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			return 0, false
		}
		sum, ok = sum+v, true
	}
	return sum, ok
}

// On both sides, a response's latency is between the time that the application took and the time
// that the client waited.
func TestH2LatencyOfSlowResponses(t *testing.T) {
	t.Parallel()
	const slow = 250 * time.Millisecond
	bound := regexp.MustCompile(`^response_latency_ms_bucket\{.*le="([0-9.]+)".*\} (\d+)`)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
		}
		say(w, "late")
	}))
	t.Cleanup(srv.Close)
	m := newMesh(t, srv.Listener.Addr().String(), speaksH2)
	began := time.Now()
	first, _, body := dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.1\nHost: web.example\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.Equal(t, "late", body)
	for p, direction := range map[*testProxy]string{m.a: "outbound", m.b: "inbound"} {
		label := `direction="` + direction + `"`
		counted(t, p, "response_latency_ms_count", 1, label)
		took := time.Since(began) // the client may have the response before the proxy sees its end
		_, text := get(t, h1Client(t, p.Admin), "http://"+p.Admin+"/metrics")
		bounds := 0
		for line := range strings.Lines(text) {
			match := bound.FindStringSubmatch(line)
			if match == nil || !strings.Contains(line, label) {
				continue
			}
			bounds++
			ms, err := strconv.ParseFloat(match[1], 64)
			require.NoError(t, err)
			switch le := time.Duration(ms * float64(time.Millisecond)); {
			case le < slow:
				require.Equal(t, "0", match[2], line)
			case le > took:
				require.Equal(t, "1", match[2], line)
			}
		}
		require.Greater(t, bounds, 10)
	}
}

// Connections to an address outside the pod are rejected, and counted with that address.
func TestH8ForeignAddressError(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = fixed(service)
		c.Settings.Inbound.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	})
	for n := range 2 {
		w := dialWire(t, tn.Inbound)
		say(w, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		_, err := w.in.ReadByte()
		require.Error(t, err)
		counted(t, tn, "inbound_tcp_errors_total", float64(n+1), `error="unexpected"`, `target_addr="`+service+`"`)
	}
}

// A client that does not complete its TLS handshake counts under another error than a client in
// cleartext at the proxy's own port.
func TestH8SilentAndCleartextErrors(t *testing.T) {
	t.Parallel()
	m := newAuthority(t, anyClient)
	up := freeAddr(t)
	hasty := func(c *sidecar.Config) { c.Settings.Inbound.DetectTimeout = 100 * time.Millisecond }
	toUp := func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(up) }
	for name, tt := range map[string]struct {
		change func(*sidecar.Config)
		sends  string
		kind   string
		target string // "" is the proxy itself
	}{
		"half of a handshake":       {func(c *sidecar.Config) { hasty(c); toUp(c) }, clientHello(t, serverName), "tls detection timeout", up},
		"silence to the proxy":      {hasty, "", "tls detection timeout", ""},
		"without TLS, to the proxy": {func(*sidecar.Config) {}, "GET / HTTP/1.1\r\nHost: web\r\n\r\n", "unexpected", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), tt.change)
			for n := range 2 {
				w := dialWire(t, b.Inbound)
				say(w, tt.sends)
				_, _ = io.Copy(io.Discard, w) // until the proxy closes the connection
				counted(t, b, "inbound_tcp_errors_total", float64(n+1),
					`error="`+tt.kind+`"`, `target_addr="`+cmp.Or(tt.target, b.Inbound)+`"`)
			}
		})
	}
}

// clientHello returns the first bytes of a client that connects to name.
func clientHello(t testing.TB, name string) string {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(far, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	hello := make([]byte, 16<<10)
	n, err := near.Read(hello)
	require.NoError(t, err)
	near.Close()
	<-done
	return string(hello[:n])
}

// TLS is not detected on opaque ports.
func TestH6OpaquePortMetrics(t *testing.T) {
	app := shouting(t, "")
	_, port, err := net.SplitHostPort(app)
	require.NoError(t, err)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	for skipped, reason := range map[bool]string{true: "port_skipped", false: "no_tls_from_remote"} {
		tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
			c.Settings.Inbound.Origin = fixed(app)
			if skipped {
				c.Settings.Inbound.OpaquePorts = settings.Ports{{First: uint16(n), Last: uint16(n)}}
			}
		})
		w := dialWire(t, tn.Inbound)
		say(w, "\x00 no HTTP, and more than 14 bytes")
		w.closeWrite(t)
		_, _ = io.Copy(io.Discard, w)
		for _, name := range []string{"tcp_close_total", "inbound_tcp_authz_allow_total"} {
			counted(t, tn, name, 1, `no_tls_reason="`+reason+`"`, `target_addr="`+app+`"`, `srv_port="`+port+`"`)
		}
	}
}
