package sidecar_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// eastName is a name in the gateway's cluster.
const eastName = "web.east.svc.cluster.local"

// newGateway returns a mesh whose proxy b is a cluster's gateway, with app under the name eastName.
// The service that proxy a reaches mirrors this name, or override if that is not "".
func newGateway(t *testing.T, app, override string, suffixes settings.Suffixes, hint func(*destination.WeightedAddr)) *mesh {
	t.Helper()
	m := &mesh{authority: newAuthority(t, anyClient), ctl: newScript(t)}
	m.b = newTestProxy(t, m.ctl.addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.GatewaySuffixes = suffixes
	})
	m.a = newTestProxy(t, m.ctl.addr, m.identified(t, clientName), toService)
	opaque := endpointAt(m.b.Inbound, hint).GetProtocolHint().GetOpaque() != nil
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example", OpaqueProtocol: opaque})
	endpoints := map[string]*destination.WeightedAddr{
		webName: endpointAt(m.b.Inbound, hint, proves(serverName), direct(m.b.Inbound), func(e *destination.WeightedAddr) {
			e.AuthorityOverride = &destination.AuthorityOverride{AuthorityOverride: override}
		}),
		eastName + ":8080": endpointAt(app),
	}
	go func() {
		for {
			select {
			case q := <-m.ctl.asked:
				select {
				case q.updates <- &destination.Update{Update: &destination.Update_Add{
					Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{endpoints[q.target]}},
				}}:
				case <-t.Context().Done():
					return
				}
			case <-t.Context().Done():
				return
			}
		}
	}()
	return m
}

// A gateway sends another cluster's requests to the name in the transport header.
func TestGateway(t *testing.T) {
	t.Parallel()
	cluster := settings.Suffixes{"svc.cluster.local"}
	up, got := application(t, okAnswer)
	m := newGateway(t, up, eastName+":8080", cluster, speaksH2)
	w := dialWire(t, m.a.Addr)
	first, _, body := w.ask(t, "GET /a HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.Equal(t, "ok", body)
	r := <-got
	assert.Equal(t, "GET /a HTTP/1.1", r.first)
	assert.Contains(t, r.fields, "Host: "+eastName+":8080")
	assert.Contains(t, r.fields, "Forwarded: by="+serverName+";for="+clientName+";host="+eastName+":8080;proto=https")
	assert.NotContains(t, r.fields, "L5d-Dst-Override: "+eastName+":8080")
	counted(t, m.b, "inbound_tcp_transport_header_connections_total", 1, `target_name="`+eastName+`"`, `target_port="8080"`, `session_protocol="http/2"`)
	counted(t, m.b, "inbound_http_authz_allow_total", 1, `client_id="`+clientName+`"`, `target_addr="`+m.b.Inbound+`"`)

	// A request that the gateway has already seen would loop forever.
	first, _, _ = w.ask(t, "GET / HTTP/1.1\nHost: web\nForwarded: for=x;by="+serverName+"\n\n")
	require.Equal(t, "HTTP/1.1 508 Loop Detected", first)
}

func TestGatewayHTTP2(t *testing.T) {
	t.Parallel()
	m := newGateway(t, backend(t, "app"), eastName+":8080", settings.Suffixes{""}, speaksH2)
	c := h2Client(t, m.a.Addr)
	c.Timeout = soon
	status, body := get(t, c, "http://web.example/b")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "app "+eastName+":8080 /b ", body)
}

func TestGatewayOpaque(t *testing.T) {
	t.Parallel()
	m := newGateway(t, shouting(t, "220 hello"), eastName+":8080", settings.Suffixes{"svc.cluster.local"}, isOpaque)
	w := dialWire(t, m.a.Addr)
	w.hear(t, "220 hello")
	converse(t, w)
	counted(t, m.b, "inbound_tcp_authz_allow_total", 1, `client_id="`+clientName+`"`, `target_addr="`+m.b.Inbound+`"`)
}

// Names outside the suffixes are not served. Without suffixes, no name is.
func TestGatewayDomain(t *testing.T) {
	t.Parallel()
	up, _ := application(t, okAnswer)
	for name, suffixes := range map[string]settings.Suffixes{"another suffix": {"svc.cluster.other"}, "no gateway": nil} {
		t.Run(name, func(t *testing.T) {
			m := newGateway(t, up, eastName+":8080", suffixes, speaksH2)
			first, _, _ := dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
			require.Equal(t, "HTTP/1.1 404 Not Found", first)
			m = newGateway(t, shouting(t, "220 hello"), eastName+":8080", suffixes, isOpaque)
			rest, _ := io.ReadAll(dialWire(t, m.a.Addr))
			require.Empty(t, string(rest))
		})
	}
}
