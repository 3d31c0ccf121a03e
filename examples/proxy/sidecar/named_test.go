package sidecar_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// canonicals is an application that reports its requests' canonical names.
func canonicals(t *testing.T) (addr string, names <-chan string) {
	t.Helper()
	canonicalNames := make(chan string, 10)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		canonicalNames <- r.Header.Get("L5d-Dst-Canonical")
	}))
	t.Cleanup(app.Close)
	return app.Listener.Addr().String(), canonicalNames
}

// Even the first request has the canonical name, because it waits for the profile.
func TestCanonicalNameFirstRequest(t *testing.T) {
	addr, names := canonicals(t)
	ctl := newScript(t)
	ctl.profile("short.example:80", &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	tn := newTestProxy(t, ctl.addr, func(c *sidecar.Config) { c.Control.ProfileInitial = soon })
	(&mesh{ctl: ctl}).answer(t, endpointAt(addr))
	c := tn.client(t)
	for range 2 {
		status, _ := get(t, c, "http://short.example/")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, webName, <-names)
	}
}
