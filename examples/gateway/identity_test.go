package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
)

// chainOf returns the certificate of a client, of an intermediate authority and of a root.
func chainOf(t *testing.T) (client tls.Certificate, root []byte) {
	t.Helper()
	var parent *x509.Certificate
	var parentKey *ecdsa.PrivateKey
	for i, name := range []string{"root", "intermediate", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, IsCA: name != "client", BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if parent == nil {
			parent, parentKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
		require.NoError(t, err)
		parent, err = x509.ParseCertificate(der)
		require.NoError(t, err)
		if parentKey = key; name == "root" {
			root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			continue
		}
		client.Certificate, client.PrivateKey = append([][]byte{der}, client.Certificate...), key
	}
	return client, root
}

// Services get the certificate of a client by RFC 9440, and never what a client claims.
func TestListenerClientCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert := certtest.New(t, "books.example")
	cert.Write(t, filepath.Join(dir, "books"), "")
	own, root := chainOf(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), root, 0o600))
	listener := func(mode string) string {
		return `- {name: ` + strings.ToLower(mode) + `, address: "127.0.0.1:0", protocol: HTTPS, tls: {certificates: [{certificateChain: books.crt, privateKey: books.key}], ` +
			`clientValidation: {caCertificates: ca.crt, mode: Optional, forwardCertificate: ` + mode + "}}}\n"
	}
	p := startFile(t, writeIn(t, dir, "listeners:\n"+listener("None")+listener("Certificate")+listener("Chain")+`
admin: {address: "127.0.0.1:0", tap: "off"}
services:
`+service("a", serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Client-Cert"), " ", r.Header["Client_cert"], " ", r.Header.Get("Client-Cert-Chain"), r.Trailer)
	}))+"routes: [{name: all, backendRefs: [{name: a}]}]\n"))
	leaf, intermediate := ":"+base64.StdEncoding.EncodeToString(own.Certificate[0])+":", ":"+base64.StdEncoding.EncodeToString(own.Certificate[1])+":"
	for name, want := range map[string]string{"none": " [] map[]", "certificate": leaf + " [] map[]", "chain": leaf + " [] " + intermediate + "map[]"} {
		for _, with := range []bool{true, false} {
			cfg := &tls.Config{RootCAs: cert.Pool(), ServerName: "books.example"}
			if with {
				cfg.Certificates = []tls.Certificate{own}
			} else {
				want = " [] map[]"
			}
			transport := &http.Transport{TLSClientConfig: cfg}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.addresses[name]+"/", http.NoBody)
			require.NoError(t, err)
			req.Header = http.Header{"Client-Cert": {":AAAA:"}, "Client_cert": {":AAAA:"}, "Client-Cert-Chain": {":AAAA:"}}
			rsp, err := (&http.Client{Transport: transport}).Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			rsp.Body.Close()
			transport.CloseIdleConnections()
			assert.Equal(t, want, string(body), "%s %v", name, with)
		}
	}
}

// What routes set and remove, and what authorization adds, does not arrive in another spelling or as a
// trailer. A client sees no 1xx response of the service that authorizes.
func TestRequestEditsCannotBeAvoided(t *testing.T) {
	t.Parallel()
	auth := serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</secret>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-User", "me")
	})
	sees := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Header["X-User"], r.Header["X_user"], r.Header["X-Internal"], r.Header["X_internal"], r.Trailer)
	})
	config := func(keep string) string {
		return strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", keepRequestTrailers: `+keep+`}]`, 1) +
			"services:\n" + service("auth", auth) + service("a", sees) + `
routes:
- name: all
  backendRefs: [{name: a}]
  externalAuth: {backendRef: {name: auth}, allowedResponseHeaders: [X-User]}
  requestHeaderModifier: {remove: [X-Internal]}
`
	}
	for keep, want := range map[string]string{"false": "[me] [] [] [] map[]", "true": "[me] [] [] [] map[X-Sum:[1]]"} {
		p := start(t, config(keep))
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
			hints++
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.addresses["http"]+"/", io.MultiReader(strings.NewReader("body")))
		require.NoError(t, err)
		req.Header = http.Header{"X-User": {"root"}, "X_user": {"root"}, "X-Internal": {"1"}, "X_internal": {"1"}}
		req.Trailer = http.Header{"X-User": {"root"}, "X-Internal": {"1"}, "X-Sum": {"1"}}
		rsp, err := p.client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		rsp.Body.Close()
		assert.Equal(t, want, string(body))
		assert.Zero(t, hints)
	}
}
