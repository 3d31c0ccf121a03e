package identity

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// setup is a directory that all can be loaded from.
func setup(t *testing.T, name string) (dir, anchors, token string, a *authority) {
	t.Helper()
	a, dir = newAuthority(t), t.TempDir()
	require.NoError(t, Generate(dir, name))
	anchors, token = filepath.Join(dir, "anchors.pem"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(anchors, a.pem(), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("one"), 0o600))
	return dir, anchors, token, a
}

func TestLoad(t *testing.T) {
	for _, name := range []string{web, spiffe} {
		dir, anchors, token, a := setup(t, name)
		for _, roots := range []string{anchors, string(a.pem())} {
			c, err := Load(dir, roots, token, name, "web.default")
			require.NoError(t, err)
			i, err := New(c)
			require.NoError(t, err)
			assert.Equal(t, name, i.Name())
			assert.Equal(t, "web.default", i.ServerName())
			got, err := c.Token()
			require.NoError(t, err)
			assert.Equal(t, "one", string(got))
			require.NoError(t, os.WriteFile(token, []byte("two"), 0o600))
			got, err = c.Token()
			require.NoError(t, err)
			assert.Equal(t, "two", string(got), "it is read again")
			require.NoError(t, os.WriteFile(token, []byte("one"), 0o600))
		}
		for _, file := range []string{"key.p8", "csr.der"} {
			info, err := os.Stat(filepath.Join(dir, file))
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode())
		}
	}
	dir, anchors, token, _ := setup(t, web)
	c, err := Load(dir, anchors, token, web, "")
	require.NoError(t, err)
	i, err := New(c)
	require.NoError(t, err)
	assert.Equal(t, web, i.ServerName())
}

func TestLoadErrors(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	_, err := Load(none, none, none, "a b", "c d")
	for _, says := range []string{
		"identity: the token for the CA: open " + none,
		"identity: trust anchors must be PEM or a PEM file: open " + none,
		"identity: open " + filepath.Join(none, "key.p8"), "identity.Generate makes it",
		"identity: open " + filepath.Join(none, "csr.der"),
		`identity: the identity "a b" must be DNS-like`,
		`identity: TLS server name "c d" must be a DNS name`,
	} {
		require.ErrorContains(t, err, says)
	}
	dir, anchors, token, a := setup(t, web)
	key, csr, empty := filepath.Join(dir, "key.p8"), filepath.Join(dir, "csr.der"), filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	fails := func(says, anchors, token, name, serverName string) {
		t.Helper()
		_, err := Load(dir, anchors, token, name, serverName)
		require.ErrorContains(t, err, says)
	}
	fails(empty+" is empty", anchors, empty, web, "")
	fails("identity: trust anchors: "+empty+": no PEM certificate found", empty, token, web, "")
	fails("identity: trust anchors: 1 of 2 PEM blocks are invalid", string(a.pem())+"-----BEGIN CERTIFICATE-----\nx", token, web, "")
	fails("identity: "+csr+": the certificate signing request is for "+web+", not for "+other, anchors, token, other, "")
	fails("identity "+spiffe, anchors, token, spiffe, "")

	kept, err := os.ReadFile(csr)
	require.NoError(t, err)
	require.NoError(t, Generate(dir, web))
	require.NoError(t, os.WriteFile(csr, kept, 0o600))
	fails(csr+": the certificate signing request is for another key", anchors, token, web, "")
	kept[len(kept)-1] ^= 1
	require.NoError(t, os.WriteFile(csr, kept, 0o600))
	fails(csr+": the certificate signing request: ", anchors, token, web, "")
	require.NoError(t, os.WriteFile(key, []byte("-----BEGIN"), 0o600))
	fails(key+" must be a PKCS#8 private key in DER", anchors, token, web, "")
	exchange, err := ecdh.X25519().GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(exchange)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, der, 0o600))
	fails("cannot sign", anchors, token, web, "")
}

func TestGenerateErrors(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, Generate(filepath.Join(dir, "none"), web), "the directory for the key must exist")
	require.ErrorContains(t, Generate(dir, "a b"), "must be DNS-like")
	require.NoError(t, Generate(dir, web))
	require.ErrorContains(t, Generate(filepath.Join(dir, "key.p8"), web), "must be a directory")
	require.NoError(t, os.Chmod(filepath.Join(dir, "key.p8"), 0o644))
	require.NoError(t, Generate(dir, web))
	info, err := os.Stat(filepath.Join(dir, "key.p8"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode(), "the permissions of the last file do not apply")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Remove(filepath.Join(dir, "key.p8")))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "key.p8")))
	require.NoError(t, Generate(dir, web))
	assert.NoFileExists(t, elsewhere, "no link is followed")
}

func TestNewErrors(t *testing.T) {
	_, err := New(Config{Name: "spiffe://x/", MinRefresh: time.Hour, MaxRefresh: time.Minute})
	for _, says := range []string{
		"is a URI and needs a TLS server name", "no Key", "no Token", "MaxRefresh 1m0s must not be less than MinRefresh 1h0m0s",
		"trust anchors: no PEM certificate found",
	} {
		require.ErrorContains(t, err, says)
	}
	_, err = New(Config{Name: web, Timeout: -1, ServerName: "10.0.0.1"})
	require.ErrorContains(t, err, "MinRefresh and Timeout must not be negative")
	require.ErrorContains(t, err, `TLS server name "10.0.0.1" must be a DNS name`)
}

func TestParseRoots(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	both := "# the old one\n" + string(a.pem()) + "the new one:\n" + string(b.pem()) + "\n"
	pool, err := parseRoots([]byte(both))
	require.NoError(t, err)
	for _, x := range []*authority{a, b} {
		_, err = verify([]*x509.Certificate{x.pair(web, time.Hour).Leaf, x.issuer}, pool, x509.ExtKeyUsageServerAuth)
		require.NoError(t, err)
	}
	for data, says := range map[string]string{
		"":     "no PEM certificate found",
		"text": "no PEM certificate found",
		both + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})):              "block 3 is a PRIVATE KEY, not a CERTIFICATE",
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})): "certificate 1: x509: ",
		both[:len(both)-40]: "1 of 2 PEM blocks are invalid",
	} {
		_, err := parseRoots([]byte(data))
		require.ErrorContains(t, err, says, data)
	}
}

func FuzzParseRoots(f *testing.F) {
	pem := newAuthority(f).pem()
	f.Add(pem)
	f.Add([]byte(strings.Repeat(string(pem), 2)))
	f.Add(pem[:len(pem)/2])
	f.Add([]byte("-----BEGIN -----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pool, err := parseRoots(data)
		if (pool == nil) != (err != nil) {
			t.Errorf("%v and %v", pool, err)
		}
		if err == nil && !strings.Contains(string(data), "-----BEGIN CERTIFICATE-----") {
			t.Error("it accepts a missing certificate")
		}
	})
}
