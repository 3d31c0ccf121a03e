package sidecar_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

const controllerName = "destination.cluster.local"

// guarded is a TLS controller that records client identities.
type guarded struct {
	*script
	mu   sync.Mutex
	seen []string // "": no identity
}

func newGuarded(t testing.TB, a *authority) *guarded {
	t.Helper()
	g := new(guarded)
	cfg := a.of(t, controllerName).Server("h2")
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		id, _ := identity.PeerIdentity(state)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.seen = append(g.seen, id)
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g.script = serveScript(t, tls.NewListener(l, cfg))
	return g
}

func (g *guarded) clients() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string{}, g.seen...)
}

// named sets the controller's name.
func (g *guarded) named(c *sidecar.Config) {
	c.Control.Destination = settings.Controller{Addr: g.addr, Name: controllerName}
}

// The destination controller gets no connection before the proxy has a certificate.
func TestControllerConnBeforeCertificate(t *testing.T) {
	a, waitForRequest, certify := newSlowAuthority(t)
	up, _ := application(t, okAnswer)
	g := newGuarded(t, a)
	g.profile(service, &destination.DestinationProfile{Endpoint: endpointAt(up)})
	tn := newTestProxy(t, g.addr, a.identified(t, clientName), toService, waitForProfile, g.named)
	waitForRequest()
	admin := h1Client(t, tn.Admin)
	_, tree := get(t, admin, "http://"+tn.Admin+"/stack")
	assert.Contains(t, tree, "waits_for=")
	assert.Empty(t, g.clients())

	w := dialWire(t, tn.Addr)
	certify()
	first, _, _ := w.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	for _, client := range g.clients() {
		require.Equal(t, clientName, client)
	}
	require.NotEmpty(t, g.clients())
	status, tree := get(t, admin, "http://"+tn.Admin+"/stack")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, tree, "waits_for=")
}

// A proxy without a certificate can shut down.
func TestShutdownWithoutCertificate(t *testing.T) {
	a := newAuthority(t, func(context.Context, string, []byte) error { return assert.AnError })
	g := newGuarded(t, a)
	tn := newTestProxy(t, g.addr, a.identified(t, clientName), toService, g.named)
	require.Equal(t, http.StatusServiceUnavailable, operatorSays(t, tn.Proxy, "/ready"))
	tn.Shutdown()
}

// New returns an error for an invalid controller address.
func TestInvalidControllerAddress(t *testing.T) {
	a := newAuthority(t, anyClient)
	c := sidecar.Config{Settings: settingsFor(t, "127.0.0.1:1")}
	a.identified(t, clientName)(&c)
	c.Control.Destination = settings.Controller{Addr: "127.0.0.1", Name: controllerName}
	_, err := sidecar.New(c, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "the destination controller: ")
}
