package sidecar_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// hidden hides that a connection uses TLS, so that HTTP/2 is used with prior knowledge.
type hidden struct{ net.Conn }

// byTLS returns a client for each way to speak HTTP over TLS.
func byTLS(t *testing.T, cfg *tls.Config) map[string]*http.Client {
	t.Helper()
	clients := map[string]*http.Client{}
	add := func(how string, protocols func(*http.Protocols), tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		protocols(tr.Protocols)
		t.Cleanup(tr.CloseIdleConnections)
		clients[how] = &http.Client{Transport: tr}
	}
	h1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	add("HTTP/1.1", h1, &http.Transport{TLSClientConfig: cfg.Clone()})
	add("HTTP/2.0", func(p *http.Protocols) { p.SetHTTP2(true) }, &http.Transport{TLSClientConfig: cfg.Clone()})
	secure := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return hidden{tls.Client(conn, cfg)}, nil
	}
	add("HTTP/1.1, not agreed on", h1, &http.Transport{DialTLSContext: secure})
	add("HTTP/2.0, not agreed on", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, &http.Transport{DialContext: secure})
	return clients
}

// The admin server accepts TLS from scrapers in the mesh, and cleartext.
func TestAdminTLS(t *testing.T) {
	t.Parallel()
	m := newAuthority(t, anyClient)
	b := certified(t, newTestProxy(t, newScript(t).addr, m.identified(t, serverName)))
	for name, c := range byTLS(t, m.of(t, clientName).Client(serverName, serverName)) {
		scheme := "https://"
		if c.Transport.(*http.Transport).Protocols.UnencryptedHTTP2() {
			scheme = "http://" // its connections are secure all the same
		}
		for _, path := range []string{"/metrics", "/ready", "/stack", "/metrics"} {
			rsp, err := c.Get(scheme + b.Admin + path)
			require.NoError(t, err, name)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, http.StatusOK, rsp.StatusCode, "%s: %s", name, path)
			require.Equal(t, name[:len("HTTP/1.1")], rsp.Proto, name)
		}
	}
	for _, c := range []*http.Client{h1Client(t, b.Admin), h2Client(t, b.Admin)} {
		status, text := get(t, c, "http://"+b.Admin+"/metrics")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, text, "# EOF")
	}
}

// A client certificate must belong to the mesh, and the server name must be the proxy's.
func TestAdminTLSOtherClients(t *testing.T) {
	m, other := newAuthority(t, anyClient), newAuthority(t, anyClient)
	b := certified(t, newTestProxy(t, newScript(t).addr, m.identified(t, serverName)))
	forged := m.of(t, clientName).Client(serverName, serverName)
	forged.GetClientCertificate = other.of(t, clientName).Client("", clientName).GetClientCertificate
	for _, cfg := range []*tls.Config{forged, m.of(t, clientName).Client("other", "other.cluster.local")} {
		for name, c := range byTLS(t, cfg) {
			scheme := "https://"
			if c.Transport.(*http.Transport).Protocols.UnencryptedHTTP2() {
				scheme = "http://"
			}
			rsp, err := c.Get(scheme + b.Admin + "/metrics")
			if err == nil {
				rsp.Body.Close()
			}
			require.Error(t, err, name)
		}
	}
}
