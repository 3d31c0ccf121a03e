package settings_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// anchors returns a certificate in PEM.
func anchors(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(2100, time.January, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func identified(t *testing.T) map[string]string {
	t.Helper()
	return least(
		"IDENTITY_SVC_ADDR", "localhost.:8080", "IDENTITY_DIR", "/var/run/linkerd/identity/end-entity",
		"IDENTITY_TRUST_ANCHORS", anchors(t), "IDENTITY_TOKEN_FILE", "/var/run/secrets/token",
		"IDENTITY_LOCAL_NAME", "web.emojivoto.serviceaccount.identity.linkerd.cluster.local",
	)
}

func TestIdentity(t *testing.T) {
	vars := identified(t)
	s, err := settings.Read(from(vars))
	require.NoError(t, err)
	require.Equal(t, &settings.Identity{
		Controller: settings.Controller{Addr: "localhost.:8080"}, Dir: vars["IDENTITY_DIR"],
		TrustAnchors: []byte(vars["IDENTITY_TRUST_ANCHORS"]), TokenFile: vars["IDENTITY_TOKEN_FILE"],
		ServerID: vars["IDENTITY_LOCAL_NAME"], ServerName: vars["IDENTITY_LOCAL_NAME"],
		MinRefresh: 10 * time.Second, MaxRefresh: 24 * time.Hour,
	}, s.Identity)
	require.False(t, s.TapServed(), "E1: no client may watch without TAP_SVC_NAME")
	require.Equal(t, addr("127.0.0.1:4190"), s.Tap.Listen)

	vars["TAP_SVC_NAME"] = "tap.linkerd"
	s, err = settings.Read(from(vars))
	require.NoError(t, err)
	require.True(t, s.TapServed())
	require.Equal(t, addr("0.0.0.0:4190"), s.Tap.Listen, "by TLS, from elsewhere too")
	vars["CONTROL_LISTEN_ADDR"] = "127.0.0.1:4190"
	s, err = settings.Read(from(vars))
	require.NoError(t, err)
	require.Equal(t, addr("127.0.0.1:4190"), s.Tap.Listen, "the address is set")
	delete(vars, "CONTROL_LISTEN_ADDR")
	vars["TAP_DISABLED"] = ""
	s, err = settings.Read(from(vars))
	require.NoError(t, err)
	require.False(t, s.TapServed())
	require.Empty(t, s.Tap.Name)
	require.Equal(t, addr("127.0.0.1:4190"), s.Tap.Listen)

	delete(vars, "IDENTITY_LOCAL_NAME")
	vars["IDENTITY_SERVER_ID"], vars["IDENTITY_SERVER_NAME"] = "spiffe://root/ns/a/sa/b", "b.a"
	s, err = settings.Read(from(vars))
	require.NoError(t, err)
	require.Equal(t, "spiffe://root/ns/a/sa/b", s.Identity.ServerID)
	require.Equal(t, "b.a", s.Identity.ServerName)
}

func TestIdentityIsComplete(t *testing.T) {
	for _, name := range []string{
		"IDENTITY_SVC_ADDR", "IDENTITY_DIR", "IDENTITY_TRUST_ANCHORS", "IDENTITY_TOKEN_FILE", "IDENTITY_LOCAL_NAME",
	} {
		vars := identified(t)
		delete(vars, name)
		_, err := settings.Read(from(vars))
		require.EqualError(t, err, "LINKERD2_PROXY_"+name+": is not set: it is required for an identity")
	}
	vars := identified(t)
	vars["IDENTITY_SERVER_ID"] = "web"
	_, err := settings.Read(from(vars))
	require.EqualError(t, err, "LINKERD2_PROXY_IDENTITY_SERVER_NAME: is not set: it is required for an identity")

	vars = identified(t)
	vars["IDENTITY_SVC_ADDR"], vars["DESTINATION_SVC_ADDR"] = "id.linkerd:8080", "dst.linkerd:8086"
	_, err = settings.Read(from(vars))
	require.ErrorContains(t, err, "IDENTITY_SVC_NAME: is not set")
	require.ErrorContains(t, err, "DESTINATION_SVC_NAME: is not set")

	vars = identified(t)
	vars["IDENTITY_TRUST_ANCHORS"] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	_, err = settings.Read(from(vars))
	require.ErrorContains(t, err, "certificate 1: ")
	vars["IDENTITY_TRUST_ANCHORS"] = "none"
	_, err = settings.Read(from(vars))
	require.ErrorContains(t, err, "must be certificates in PEM")

	s, err := settings.Read(from(least("IDENTITY_MIN_REFRESH", "1s")))
	require.NoError(t, err)
	require.Nil(t, s.Identity)
}

// If a key is set instead of a certificate, the error does not contain the key.
func TestKeyInAnchors(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	secret := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	vars := identified(t)
	good := vars["IDENTITY_TRUST_ANCHORS"]
	for _, file := range []string{"", "identity: {trust_anchors: \"" + strings.ReplaceAll(secret, "\n", "\\n") + "\"}"} {
		for _, anchors := range []string{secret, secret + good, secret[:100], good} {
			vars["IDENTITY_TRUST_ANCHORS"] = anchors
			if file == "" && anchors == good {
				continue
			}
			_, err = settings.Read(from(vars), settings.File("p.yaml", []byte(file)))
			require.ErrorContains(t, err, "certificates")
			body := strings.Join(strings.Split(secret, "\n")[1:], "")
			for i := 0; i+8 <= 64; i++ {
				require.NotContains(t, err.Error(), body[i:i+8])
			}
		}
	}
	vars["IDENTITY_TRUST_ANCHORS"] = good + good[:len(good)-40]
	_, err = settings.Read(from(vars))
	require.EqualError(t, err, "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS: 1 of 2 PEM blocks are invalid")
}

// Package identity accepts all names that settings accept.
func TestIdentitiesMatchPackageIdentity(t *testing.T) {
	for _, id := range []string{
		"web.default", "a_b-c", "10.0.0.1", "::1", "-web", "web-.default", "a..b", strings.Repeat("a", 64),
		"spiffe://cluster.local/ns/a/sa/b", "spiffe://Cluster.Local/x", "spiffe://a", "spiffe://a:1/b", "spiffe://u@a/b", "spiffe://a/b?c",
		"spiffe://a/b#", "spiffe://a b/c", "spiffe:///b", "spiffe://a..b/c", "spiffe://a./c", "spiffe://10.0.0.1/c", "spiffe://a/%zz",
		"spiffe://a/\u00e9", "spiffe://", "https://a/b", "SPIFFE://a/b", "spiffe://a/" + strings.Repeat("b", 2048), "spiffe://a%41/b",
	} {
		vars := identified(t)
		vars["IDENTITY_SERVER_ID"], vars["IDENTITY_SERVER_NAME"] = id, "web.default"
		_, here := settings.Read(from(vars))
		_, _, there := identity.Request(id)
		require.Equal(t, there == nil, here == nil, "%s: %v, %v", id, here, there)
	}
	_, err := settings.Read(from(least("TAP_SVC_NAME", "10.0.0.1")))
	require.ErrorContains(t, err, "must be a DNS name")
}
