package sidecar_test

import (
	"crypto/tls"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gotower/gotower/examples/internal/spans/spanstest"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

const collectorName = "collector.cluster.local"

// startCollector starts an OTLP receiver over gRPC that requires mutual TLS. traced makes a proxy
// send spans to it.
func (a *authority) startCollector(t *testing.T) (r *spanstest.Receiver, traced func(*sidecar.Config)) {
	t.Helper()
	r, err := spanstest.NewReceiver()
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := a.of(t, collectorName).Server("h2")
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	r.Register(srv)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return r, func(c *sidecar.Config) {
		c.Settings.Traces = settings.Traces{
			Collector:  settings.Controller{Addr: l.Addr().String(), Name: collectorName},
			Attributes: map[string]string{"service.name": "web-proxy"},
		}
	}
}

// A sampled trace gets a span from each side of both proxies, in a row from the application that
// sends the request to the one that serves it. Other requests pass unchanged.
func TestSpans(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	up, got := application(t, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
	m := &mesh{authority: newAuthority(t, anyClient), ctl: newScript(t)}
	collector, traced := m.startCollector(t)
	m.b = newTestProxy(t, m.ctl.addr, m.identified(t, serverName), traced, func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(up) })
	m.a = newTestProxy(t, m.ctl.addr, m.identified(t, clientName), traced, toService)
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.answer(t, endpointAt(m.b.Inbound, proves(serverName), speaksH2))

	client := dialWire(t, m.a.Addr)
	for _, untraced := range []string{"", "Traceparent: 00-" + trace + "-" + parent + "-00\n", "X-B3-Traceid: " + trace + "\n"} {
		client.ask(t, "GET / HTTP/1.1\nHost: web.example\n"+untraced+"\n")
		header := strings.TrimSpace(untraced)
		assert.Equal(t, header != "", slices.Contains((<-got).fields, header), header)
	}
	first, _, _ := client.ask(t, "POST /books?page=2 HTTP/1.1\nHost: web.example:8080\nUser-Agent: test\nContent-Type: text/plain\n"+
		"Content-Length: 2\nTracestate: a=1\nTraceparent: 00-"+trace+"-"+parent+"-01\n\nhi")
	require.Equal(t, "HTTP/1.1 503 Service Unavailable", first)
	served := (<-got).fields
	assert.Contains(t, served, "Tracestate: a=1")
	byParent := map[string]spanstest.Span{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		all := collector.Spans("")
		require.Len(c, all, 4)
		for _, s := range all {
			byParent[s.Parent] = s
		}
	}, soon, tick)
	host, err := os.Hostname()
	require.NoError(t, err)
	id := parent
	for i, want := range []struct{ kind, direction string }{
		{"SPAN_KIND_SERVER", "outbound"}, {"SPAN_KIND_CLIENT", "outbound"}, {"SPAN_KIND_SERVER", "inbound"}, {"SPAN_KIND_CLIENT", "inbound"},
	} {
		s, ok := byParent[id]
		require.True(t, ok, "the span %d has the parent %s", i, id)
		id = s.ID
		assert.Equal(t, want.kind, s.Kind)
		assert.Equal(t, "/books", s.Name)
		assert.Equal(t, trace, s.Trace)
		assert.Equal(t, "a=1", s.State)
		assert.LessOrEqual(t, s.Start, s.End)
		assert.NotEmpty(t, s.Failure)
		assert.Equal(t, "web-proxy", s.Resource["service.name"])
		assert.Equal(t, host, s.Resource["host.name"])
		assert.EqualValues(t, os.Getpid(), s.Resource["process.pid"])
		attributes := map[string]any{
			"direction": want.direction, "http.request.method": "POST", "network.transport": "tcp", "url.scheme": "http",
			"url.path": "/books", "url.query": "page=2", "url.full": "http://web.example:8080/books?page=2",
			"server.address": "web.example", "server.port": "8080", "user_agent.original": "test",
			"http.request.header.content-type": "text/plain", "http.request.header.content-length": "2",
			"http.response.status_code": "503",
		}
		if i == 2 { // the request arrives over HTTP/2
			attributes["http.request.header.l5d-orig-proto"] = "HTTP/1.1"
		}
		assert.Equal(t, attributes, s.Attributes)
	}
	assert.Contains(t, served, "Traceparent: 00-"+trace+"-"+id+"-01")
	for _, p := range []*testProxy{m.a, m.b} {
		p.metrics(t, func(t require.TestingT, text string) {
			require.Contains(t, text, "\nopentelemetry_span_exports 2\n")
			require.Contains(t, text, "\nopentelemetry_spans_lost_total{reason=\"dropped\"} 0\n")
			require.Contains(t, text, "\nopentelemetry_spans_lost_total{reason=\"failed\"} 0\n")
		})
	}
}

// A failed request's spans have the status with which the proxy answers it. The trace may arrive in
// the format B3. Waiting spans are sent at shutdown.
func TestSpansOfFailure(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	a := newAuthority(t, anyClient)
	collector, traced := a.startCollector(t)
	refusing := freeAddr(t)
	p, stop, ended := run(t, newScript(t).addr, a.identified(t, serverName), traced,
		func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(refusing) })
	first, _, _ := dialWire(t, p.Inbound).ask(t, "GET /a HTTP/1.1\nHost: web\nConnection: close\nX-B3-Sampled: 1\n"+
		"X-B3-Spanid: 00f067aa0ba902b7\nX-B3-Traceid: "+trace+"\n\n")
	require.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
	stop()
	require.NoError(t, <-ended)
	all := collector.Spans(trace)
	require.Len(t, all, 2)
	for _, s := range all {
		assert.Equal(t, "502", s.Attributes["http.response.status_code"])
		assert.Contains(t, s.Failure, refusing)
	}
}
