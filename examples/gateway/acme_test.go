package main

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/freeport"
)

// A certificate is obtained from pebble, the ACME server of Let's Encrypt for tests. pebble is
// installed by the go command, therefore the test is one of the long forms.
func TestACME(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("GOTOWER_TESTS=full installs pebble")
	}
	bin := t.TempDir()
	install := exec.CommandContext(t.Context(), "go", "install", "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1")
	install.Env = append(os.Environ(), "GOBIN="+bin)
	out, err := install.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Run("TLS-ALPN-01", func(t *testing.T) { testACME(t, bin, false) })
	t.Run("HTTP-01", func(t *testing.T) { testACME(t, bin, true) })
}

// testACME obtains a certificate from pebble, which is in the folder bin. If http01 is true, pebble cannot
// connect by TLS, as behind a load balancer that ends it.
func testACME(t *testing.T, bin string, http01 bool) {
	t.Helper()
	dir := t.TempDir()
	address, cleartext := freeport.Addr(t), freeport.Addr(t)
	httpPort, tlsPort := netip.MustParseAddrPort(cleartext).Port(), netip.MustParseAddrPort(address).Port()
	if http01 {
		tlsPort = 1
	} else {
		httpPort = 1
	}
	certtest.New(t, "127.0.0.1").Write(t, filepath.Join(dir, "pebble"), filepath.Join(dir, "ca.crt"))
	server := freeport.Addr(t)
	settings, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": server, "managementListenAddress": "", "certificate": filepath.Join(dir, "pebble.crt"),
		"privateKey": filepath.Join(dir, "pebble.key"), "httpPort": httpPort, "tlsPort": tlsPort,
		"profiles": map[string]any{"default": map[string]any{"description": "default", "validityPeriod": 7776000}},
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pebble.json"), settings, 0o600))
	pebble := exec.CommandContext(t.Context(), filepath.Join(bin, "pebble"), "-config", filepath.Join(dir, "pebble.json"), "-dnsserver", serveDNS(t))
	pebble.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
	log := &syncBuffer{}
	pebble.Stdout, pebble.Stderr = log, log
	require.NoError(t, pebble.Start())
	t.Cleanup(func() { _ = pebble.Process.Kill(); _ = pebble.Wait() })
	until(t, func() bool { return dials(server) })
	directory := withLocation(t, server, filepath.Join(dir, "pebble"))

	p := startFile(t, writeIn(t, dir, `
listeners:
- {name: http, address: "`+cleartext+`"}
- name: https
  address: `+address+`
  protocol: HTTPS
  requestHeadersTimeout: 1m
  tls:
    acme: {domains: [books.example.test], cacheDirectory: acme, directoryURL: "`+directory+`", caCertificates: ca.crt}
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
routes:
- {name: to-https, listeners: [http], requestRedirect: {scheme: https}}
- {name: all, directResponse: {status: 200, body: secured}}
`))
	get := func(name string) (string, string, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{ServerName: name, InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		rsp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("https://" + address + "/")
		if err != nil {
			return "", "", err
		}
		defer rsp.Body.Close()
		text, err := io.ReadAll(rsp.Body)
		return string(text), rsp.TLS.PeerCertificates[0].Issuer.CommonName, err
	}
	text, issuer, err := get("books.example.test")
	require.NoError(t, err, "%s %s", log, p.log)
	assert.Equal(t, "secured", text)
	assert.Contains(t, issuer, "Pebble Intermediate CA")
	_, _, err = get("other.example.test")
	require.Error(t, err)
	for _, host := range []string{"books.example.test", "other.example.test"} { // no challenge
		a := p.get(t, "GET", "/.well-known/acme-challenge/none", "Host: "+host)
		assert.Equal(t, []any{302, "https://" + host + "/.well-known/acme-challenge/none"}, []any{a.StatusCode, a.Header.Get("Location")})
	}
	kept, err := os.ReadDir(filepath.Join(dir, "acme"))
	require.NoError(t, err)
	assert.NotEmpty(t, kept)
}

// withLocation returns the directory of a proxy in front of pebble. It adds the Location to responses
// of finalize, which package acme needs for an order that is not ready yet.
func withLocation(t *testing.T, server, cert string) string {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "https", server
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		ModifyResponse: func(rsp *http.Response) error {
			if id, ok := strings.CutPrefix(rsp.Request.URL.Path, "/finalize-order/"); ok {
				rsp.Header.Set("Location", "https://"+rsp.Request.Host+"/my-order/"+id)
			}
			return nil
		},
	}
	pair, err := tls.LoadX509KeyPair(cert+".crt", cert+".key")
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(proxy)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL + "/dir"
}

// serveDNS returns the address of a DNS server over TCP for which each name is 127.0.0.1.
func serveDNS(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			assert.NoError(t, answerDNS(conn))
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// answerDNS answers the first question of a connection.
func answerDNS(conn net.Conn) error {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	question := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, question); err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return err
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
	}
	packed, err := m.Pack()
	if err == nil {
		_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
	}
	return err
}
