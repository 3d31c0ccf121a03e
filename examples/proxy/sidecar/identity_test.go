package sidecar_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// tick is how often a test checks whether something has happened.
const tick = 2 * time.Millisecond

// operatorSays returns the status of a path on a proxy's admin server.
func operatorSays(t asking, p *sidecar.Proxy, path string) int {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := c.Get("http://" + p.Admin + path)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	return rsp.StatusCode
}

// newSlowAuthority returns an authority that issues certificates after certify was called.
// waitForRequest waits for the first request.
func newSlowAuthority(t testing.TB) (a *authority, waitForRequest, certify func()) {
	t.Helper()
	asks, certified := make(chan struct{}, 100), make(chan struct{})
	a = newAuthority(t, func(context.Context, string, []byte) error {
		asks <- struct{}{}
		<-certified
		return nil
	})
	waitForRequest = func() {
		t.Helper()
		select {
		case <-asks:
		case <-time.After(soon):
			require.Fail(t, "there is no request for a certificate")
		}
	}
	return a, waitForRequest, func() { close(certified) }
}

// A proxy without a certificate is not ready and does not accept TLS. With one, it does both.
func TestG1AndG2ReadyAfterCertificate(t *testing.T) {
	a, waitForRequest, certify := newSlowAuthority(t)
	up, _ := application(t, okAnswer)
	tn := newTestProxy(t, newScript(t).addr, a.identified(t, serverName), func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(up) })
	waitForRequest()
	raw, err := net.Dial("tcp", tn.Inbound)
	require.NoError(t, err)
	secure := tls.Client(raw, a.of(t, clientName).Client(serverName, serverName))
	shaken := make(chan error, 1)
	go func() { shaken <- secure.HandshakeContext(t.Context()) }()
	assert.Equal(t, http.StatusServiceUnavailable, operatorSays(t, tn.Proxy, "/ready"))
	assert.Equal(t, http.StatusOK, operatorSays(t, tn.Proxy, "/live"))
	select {
	case err := <-shaken:
		assert.Fail(t, "TLS is served", "%v", err)
	default:
	}

	certify()
	require.NoError(t, <-shaken)
	first, _, _ := newWire(t, secure).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 200 OK", first)
	assert.Equal(t, http.StatusOK, operatorSays(t, tn.Proxy, "/ready"))
}

func TestG3CertificateRenewal(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]time.Duration{"some time after": tick, "as soon as may be": 0} {
		t.Run(name, func(t *testing.T) { testCertificatesAreRenewed(t, least) })
	}
}

func testCertificatesAreRenewed(t *testing.T, least time.Duration) {
	t.Helper()
	requests := make(chan struct{}, 4)
	a := newAuthority(t, func(context.Context, string, []byte) error {
		select {
		case requests <- struct{}{}:
		default: // as often as is waited for
		}
		return nil
	})
	tn := newTestProxy(t, newScript(t).addr, a.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Identity.MinRefresh, c.Settings.Identity.MaxRefresh = least, 5*tick
	})
	for range 4 {
		<-requests
	}
	control := h1Client(t, tn.Admin)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the last answer is counted once it has come
		_, metrics := get(c, control, "http://"+tn.Admin+"/metrics")
		assert.Regexp(c, `control_identity_cert_refreshes_total\{result="ok"\} ([4-9]|\d\d)`, metrics)
	}, soon, tick)
}

// Certificates are renewed until the last connection has ended.
func TestCertificateRenewalDuringShutdown(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	a := newAuthority(t, func(context.Context, string, []byte) error {
		requests.Add(1)
		return nil
	})
	up, _ := application(t, okAnswer)
	p, stop, ended := run(t, newScript(t).addr, a.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Identity.MinRefresh, c.Settings.Identity.MaxRefresh = tick, 5*tick
		c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(shouting(t, "")), fixed(up)
		c.Shutdown.Grace = 2 * soon
	})
	tunnel, idle := dialWire(t, p.Addr), dialWire(t, p.Inbound)
	say(tunnel, "\x00 this is no HTTP, and is more than 14 bytes")
	tunnel.hear(t, strings.ToUpper("\x00 this is no HTTP, and is more than 14 bytes"))
	first, _, _ := idle.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)

	stop()
	_, err := idle.in.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the end has begun")
	before := requests.Load()
	require.Eventually(t, func() bool { return requests.Load() >= before+3 }, soon, tick)
	require.NoError(t, tunnel.Close())
	require.NoError(t, <-ended)
}

// The endpoint must have the identity in l5d-require-id.
func TestG4RequiredIdentity(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		secure  bool
		profile func(e *destination.WeightedAddr) *destination.DestinationProfile
	}{
		"discovered":           {true, nil},
		"discovered, in clear": {false, nil},
		"by address": {true, func(e *destination.WeightedAddr) *destination.DestinationProfile {
			return &destination.DestinationProfile{Endpoint: e}
		}},
		"by address, in clear": {false, func(e *destination.WeightedAddr) *destination.DestinationProfile {
			return &destination.DestinationProfile{Endpoint: e}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			up, got := application(t, okAnswer)
			m := meshOf(t, up)
			e := endpointAt(up)
			if tt.secure {
				e = endpointAt(m.b.Inbound, speaksH2, proves(serverName))
			}
			if tt.profile != nil {
				m.ctl.profile(service, tt.profile(e))
			} else {
				m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
				m.answer(t, e)
			}
			ask := func(id string) string {
				first, _, _ := dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.1\nHost: web\nl5d-require-id: "+id+"\n\n")
				return first
			}
			if tt.secure {
				require.Equal(t, "HTTP/1.1 200 OK", ask(serverName))
				require.NotContains(t, strings.Join((<-got).fields, " "), "L5d-Require-Id")
			} else {
				require.Equal(t, "HTTP/1.1 502 Bad Gateway", ask(serverName))
			}
			require.Equal(t, "HTTP/1.1 502 Bad Gateway", ask(clientName))
			require.Empty(t, got, "nothing was sent")
		})
	}
}

// A TLS server with an identity other than the controller reported gets no requests.
func TestG4OtherServer(t *testing.T) {
	t.Parallel()
	up, got := application(t, okAnswer)
	m := meshOf(t, up)
	e := endpointAt(m.b.Inbound, speaksH2, proves("other.cluster.local"))
	e.TlsIdentity.ServerName = &destination.TlsIdentity_DnsLikeIdentity{Name: serverName}
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.answer(t, e)
	patiently(t, func(failFast func(*sidecar.Config)) (string, bool) {
		a := newTestProxy(t, m.ctl.addr, m.identified(t, clientName), toService, failFast)
		first, fields, _ := dialWire(t, a.Addr).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
		all := strings.Join(append(fields, first), "\n")
		return all, first == "HTTP/1.1 504 Gateway Timeout" && strings.Contains(all, "expected other.cluster.local, seen "+serverName)
	})
	require.Empty(t, got)
}

// A client in cleartext has no identity, whatever its headers say.
func TestG5ForgedIdentity(t *testing.T) {
	up, got := application(t, okAnswer)
	m := meshOf(t, up)
	first, _, _ := dialWire(t, m.b.Inbound).ask(t, "GET / HTTP/1.1\nHost: web\nl5d-client-id: "+clientName+"\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.Equal(t, []string{"Host: web"}, (<-got).fields)
}

// A client that stalls the TLS handshake does not block others.
func TestG6StalledHandshake(t *testing.T) {
	up, _ := application(t, okAnswer)
	m := newMesh(t, up, speaksH2)
	for range 3 {
		say(dialWire(t, m.b.Inbound), "\x16\x03\x01")
	}
	first, _, _ := dialWire(t, m.a.Addr).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
}
