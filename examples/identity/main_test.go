package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	web = "web.default.serviceaccount.identity.linkerd.cluster.local"
	id  = "spiffe://cluster.local/ns/default/sa/web"
)

// firstLine reads the line with the address.
func firstLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line := make([]byte, 0, 128)
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		_, err := r.Read(b)
		require.NoError(t, err)
		if b[0] == '\n' {
			return string(line)
		}
	}
}

// started runs the program until stop.
func started(t *testing.T, args ...string) (addr string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append(args, "-listen", "127.0.0.1:0"), in, io.Discard) }()
	match := regexp.MustCompile(`^certifying names of cluster\.local on (127\.0\.0\.1:\d+); trust anchors are in .*/trust-anchors\.pem$`).
		FindStringSubmatch(firstLine(t, out))
	require.NotNil(t, match)
	return match[1], func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// The commands of the README set up a proxy, which receives a certificate.
func TestServesCleartext(t *testing.T) {
	dir := t.TempDir()
	token, anchors := filepath.Join(dir, "token"), filepath.Join(dir, "ca", "trust-anchors.pem")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	for _, name := range []string{web, id} {
		proxy := filepath.Join(dir, "proxy")
		var output bytes.Buffer
		require.NoError(t, run(t.Context(), []string{"init", "-dir", proxy, "-name", name}, &output, io.Discard))
		assert.Equal(t, "wrote key.p8 and csr.der for "+name+" into "+proxy+"\n", output.String())

		addr, stop := started(t, "-dir", filepath.Join(dir, "ca"), "-token-file", token, "-lifetime", "1h")
		config, err := identity.Load(proxy, anchors, token, name, "web.default")
		require.NoError(t, err)
		i, err := identity.New(config)
		require.NoError(t, err)
		certified(t, i, addr, insecure.NewCredentials())
		stop()
	}
}

// With TLS, the authority proves its name to proxies that have no certificate.
func TestServesTLS(t *testing.T) {
	const name = "ca.identity.cluster.local"
	dir := t.TempDir()
	token := filepath.Join(dir, web)
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	addr, stop := started(t, "-dir", filepath.Join(dir, "ca"), "-tokens", dir, "-name", name)
	defer stop()
	proxy := filepath.Join(dir, "proxy")
	require.NoError(t, run(t.Context(), []string{"init", "-dir", proxy, "-name", web}, io.Discard, io.Discard))
	config, err := identity.Load(proxy, filepath.Join(dir, "ca", "trust-anchors.pem"), token, web, "")
	require.NoError(t, err)
	i, err := identity.New(config)
	require.NoError(t, err)
	certified(t, i, addr, credentials.NewTLS(i.Bootstrap("", name)))
	certified(t, i, addr, credentials.NewTLS(i.Client("", name))) // again, now with the certificate

	conn, err := tls.Dial("tcp", addr, i.Client("", name)) // as a linkerd proxy does, with no ALPN
	require.NoError(t, err)
	require.Empty(t, conn.ConnectionState().NegotiatedProtocol)
	require.NoError(t, conn.Close())
	_, err = tls.Dial("tcp", addr, i.Client("", "elsewhere.cluster.local"))
	require.ErrorIs(t, err, identity.ErrPeerIdentity)
}

// certified gets i a certificate from the program at addr.
func certified(t *testing.T, i *identity.Identity, addr string, creds credentials.TransportCredentials) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx, conn) }()
	require.NoError(t, i.Ready(ctx))
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, conn.Close())
}

// authorityFiles writes the files of authorities with mistakes below dir.
func authorityFiles(t *testing.T, dir string) {
	t.Helper()
	good, err := ca.Generate("cluster.local")
	require.NoError(t, err)
	other, err := ca.Generate("cluster.local")
	require.NoError(t, err)
	write := func(name string, f ca.Files) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		for file, data := range map[string][]byte{"trust-anchors.pem": f.Anchors, "issuer.pem": f.Issuer, "issuer.key": f.Key} {
			if data != nil {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name, file), data, 0o600))
			}
		}
	}
	text := []byte("no PEM")
	write("good", good)
	write("no-key", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer})
	write("no-issuer", ca.Files{Anchors: good.Anchors, Key: good.Key})
	write("no-anchors", ca.Files{Issuer: good.Issuer, Key: good.Key})
	write("text-key", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer, Key: text})
	write("text-issuer", ca.Files{Anchors: good.Anchors, Issuer: text, Key: good.Key})
	write("text-anchors", ca.Files{Anchors: text, Issuer: good.Issuer, Key: good.Key})
	write("empty-key", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer, Key: []byte{}})
	write("empty-issuer", ca.Files{Anchors: good.Anchors, Issuer: []byte{}, Key: good.Key})
	write("empty-anchors", ca.Files{Anchors: []byte{}, Issuer: good.Issuer, Key: good.Key})
	write("other-key", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer, Key: other.Key})
	write("other-anchors", ca.Files{Anchors: other.Anchors, Issuer: good.Issuer, Key: good.Key})
	write("swapped", ca.Files{Anchors: good.Anchors, Issuer: good.Key, Key: good.Issuer})
	write("key-is-certificate", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer, Key: good.Issuer})
	write("cut", ca.Files{Anchors: good.Anchors, Issuer: good.Issuer[:len(good.Issuer)/2], Key: good.Key})
	write("root-key", ca.Files{Anchors: good.Anchors, Issuer: good.Anchors, Key: good.Key})

	selfSigned := func(name string, key crypto.Signer, change func(*x509.Certificate)) {
		t.Helper()
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		change(cert)
		der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
		require.NoError(t, err)
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		write(name, ca.Files{Anchors: encoded, Issuer: encoded, Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})})
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	selfSigned("leaf", key, func(c *x509.Certificate) { c.IsCA = false })
	selfSigned("no-cert-sign", key, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	selfSigned("expired", key, func(c *x509.Certificate) { c.NotAfter = time.Unix(86400, 0) })
	selfSigned("future", key, func(c *x509.Certificate) { c.NotBefore = time.Unix(1<<33, 0); c.NotAfter = time.Unix(1<<34, 0) })
}

// Each mistake has its place, its value and what is allowed. A want is the beginning of the message.
func TestInvalidArguments(t *testing.T) {
	dir := t.TempDir()
	authorityFiles(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	long := strings.Repeat("a", 256)
	for _, c := range []struct{ args, want string }{
		{``, `-dir is required; see -help`},
		{`-nonsense`, `flag provided but not defined: -nonsense; see -help`},
		{`-dir`, `flag needs an argument: -dir; see -help`},
		{`-dir= -tokens DIR`, `-dir is required; see -help`},
		{`-dir DIR/good`, `-token-file or -tokens is required, but not both; see -help`},
		{`-dir DIR/good extra`, `"extra": arguments must be flags; see -help`},
		{`-dir DIR/good -token-file a -tokens b`, `-token-file or -tokens is required, but not both; see -help`},
		{`-dir DIR/good -kubernetes -tokens DIR`, `-kubernetes does not use -token-file and -tokens; see -help`},
		{`-dir DIR/good -kubernetes -token-file DIR/file`, `-kubernetes does not use -token-file and -tokens; see -help`},
		{`-dir DIR/good -kubernetes=maybe`, `invalid boolean value "maybe" for -kubernetes: parse error; see -help`},
		{`-dir DIR/good -kubernetes -kubeconfig DIR/none`, `-kubeconfig DIR/none: kube: stat DIR/none: no such file or directory`},
		{`-dir DIR/good -kubernetes -kubeconfig DIR/file`, `-kubeconfig DIR/file: kube: error loading config file "DIR/file": `},
		{`-dir DIR/good -kubernetes -kubeconfig DIR/empty`, `-kubeconfig DIR/empty: kube: invalid configuration`},
		{`-dir DIR/good -kubernetes`, `kube: unable to load in-cluster configuration`},
		{`-dir DIR/good -tokens DIR -kubeconfig DIR/file`, `-kubeconfig requires -kubernetes; see -help`},
		{`-dir DIR/good -tokens DIR -namespace x`, `-namespace requires -kubernetes; see -help`},
		{`-dir DIR/good -tokens DIR -lifetime 1`, `invalid value "1" for flag -lifetime: want a duration such as 250ms, 10s or 24h; see -help`},
		{`-dir DIR/good -tokens DIR -lifetime 1d`, `invalid value "1d" for flag -lifetime: want a duration such as 250ms, 10s or 24h; see -help`},
		{`-dir DIR/good -tokens DIR -lifetime 19.9s`, `-lifetime 19.9s: must be at least 20s, because proxies renew at most every 10s; see -help`},
		{`-dir DIR/good -tokens DIR -lifetime -24h`, `-lifetime -24h0m0s: must be at least 20s, because proxies renew at most every 10s; see -help`},
		{`-dir DIR/good -tokens DIR -lifetime soon`, `invalid value "soon" for flag -lifetime: want a duration such as 250ms, 10s or 24h; see -help`},
		{`-dir DIR/good -tokens DIR -trust-domain Cluster.local`, `-trust-domain: trust domain "Cluster.local": must have 1 to 255 bytes: lower-case letters, digits, '-', '.' and '_'; see -help`},
		{`-dir DIR/good -tokens DIR -trust-domain spiffe://cluster.local`, `-trust-domain: trust domain "spiffe://cluster.local": must have 1 to 255 bytes: lower-case letters, digits, '-', '.' and '_'; see -help`},
		{`-dir DIR/good -tokens DIR -trust-domain a/b`, `-trust-domain: trust domain "a/b": must have 1 to 255 bytes: lower-case letters, digits, '-', '.' and '_'; see -help`},
		{`-dir DIR/good -tokens DIR -trust-domain a:1`, `-trust-domain: trust domain "a:1": must have 1 to 255 bytes: lower-case letters, digits, '-', '.' and '_'; see -help`},
		{"-dir DIR/good -tokens DIR -trust-domain " + long, `-trust-domain: trust domain `},
		{`-dir DIR/good -tokens DIR/file`, `-tokens DIR/file: must be a directory; use -token-file for a file; see -help`},
		{`-dir DIR/good -token-file DIR`, `-token-file DIR is a directory: must be a file; use -tokens for a directory; see -help`},
		{`-dir DIR/good -tokens DIR -listen 8080`, `-listen 8080: listen tcp: address 8080: missing port in address`},
		{`-dir DIR/good -tokens DIR -listen 127.0.0.1:99999`, `-listen 127.0.0.1:99999: listen tcp: address 99999: invalid port`},
		{`-dir DIR/good -tokens DIR -listen 127.0.0.1:ftpx`, `-listen 127.0.0.1:ftpx: listen tcp: lookup tcp/ftpx: unknown port`},
		{`-dir DIR/good -tokens DIR -listen http://127.0.0.1:0`, `-listen http://127.0.0.1:0: listen tcp: address http://127.0.0.1:0: too many colons in address`},
		{`-dir DIR/good -tokens DIR -listen [::1`, `-listen [::1: listen tcp: address [::1: missing ']' in address`},
		{`-dir DIR/good -tokens DIR -name *`, `-name: ca: the identity "*" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`-dir DIR/good -tokens DIR -name a..b`, `-name: ca: the identity "a..b" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`-dir DIR/good -tokens DIR -name ca`, `-name: ca: "ca" does not belong to the trust domain cluster.local`},
		{`-dir DIR/good -tokens DIR -name ca.example.org`, `-name: ca: "ca.example.org" does not belong to the trust domain cluster.local`},
		{`-dir DIR/good -tokens DIR -name spiffe://cluster.local/ca`, `-name: ca: the name of the TLS server "spiffe://cluster.local/ca" must be DNS-like`},
		{`-dir DIR/good -tokens DIR -name 10.0.0.1`, `-name: ca: the identity "10.0.0.1" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`-dir DIR/good -tokens DIR -name -a.cluster.local`, `-name: ca: the identity "-a.cluster.local" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`-dir DIR/good -tokens DIR -name ca.cluster.local.`, `-name: ca: the identity "ca.cluster.local." must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`-dir DIR/file -tokens DIR`, `ca: open DIR/file/trust-anchors.pem: not a directory`},
		{`-dir DIR/file/x -tokens DIR`, `ca: open DIR/file/x/trust-anchors.pem: not a directory`},
		{`-dir DIR/no-key -tokens DIR`, `ca: DIR/no-key has only some of trust-anchors.pem, issuer.pem and issuer.key: restore the missing files, or remove the others`},
		{`-dir DIR/no-issuer -tokens DIR`, `ca: DIR/no-issuer has only some of trust-anchors.pem, issuer.pem and issuer.key: restore the missing files, or remove the others`},
		{`-dir DIR/no-anchors -tokens DIR`, `ca: DIR/no-anchors has only some of trust-anchors.pem, issuer.pem and issuer.key: restore the missing files, or remove the others`},
		{`-dir DIR/text-key -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/text-key (use a new directory for a new issuer): ca: the issuer: tls: failed to find any PEM data in key input`},
		{`-dir DIR/text-issuer -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/text-issuer (use a new directory for a new issuer): ca: the issuer: tls: failed to find any PEM data in certificate input`},
		{`-dir DIR/text-anchors -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/text-anchors (use a new directory for a new issuer): ca: the trust anchors have no certificate in PEM`},
		{`-dir DIR/empty-key -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/empty-key (use a new directory for a new issuer): ca: the issuer: tls: failed to find any PEM data in key input`},
		{`-dir DIR/empty-issuer -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/empty-issuer (use a new directory for a new issuer): ca: the issuer: tls: failed to find any PEM data in certificate input`},
		{`-dir DIR/empty-anchors -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/empty-anchors (use a new directory for a new issuer): ca: the trust anchors have no certificate in PEM`},
		{`-dir DIR/other-key -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/other-key (use a new directory for a new issuer): ca: the issuer: tls: private key does not match public key`},
		{`-dir DIR/other-anchors -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/other-anchors (use a new directory for a new issuer): ca: the trust anchors do not verify the issuer: x509: certificate signed by unknown authority`},
		{`-dir DIR/swapped -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/swapped (use a new directory for a new issuer): ca: the issuer: tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched`},
		{`-dir DIR/key-is-certificate -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/key-is-certificate (use a new directory for a new issuer): ca: the issuer: tls: found a certificate rather than a key in the PEM for the private key`},
		{`-dir DIR/cut -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/cut (use a new directory for a new issuer): ca: the issuer: tls: failed to find any PEM data in certificate input`},
		{`-dir DIR/root-key -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/root-key (use a new directory for a new issuer): ca: the issuer: tls: private key does not match public key`},
		{`-dir DIR/leaf -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/leaf (use a new directory for a new issuer): ca: the issuer "leaf" may not issue certificates: must be a CA with the key usage cert sign`},
		{`-dir DIR/no-cert-sign -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/no-cert-sign (use a new directory for a new issuer): ca: the issuer "no-cert-sign" may not issue certificates: must be a CA with the key usage cert sign`},
		{`-dir DIR/expired -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/expired (use a new directory for a new issuer): ca: the trust anchors do not verify the issuer: x509: certificate has expired or is not yet valid: `},
		{`-dir DIR/future -tokens DIR`, `ca: trust-anchors.pem, issuer.pem or issuer.key in DIR/future (use a new directory for a new issuer): ca: the trust anchors do not verify the issuer: x509: certificate has expired or is not yet valid: `},
		{`init`, `-dir and -name are required; see -help`},
		{`init -nonsense`, `flag provided but not defined: -nonsense; see -help`},
		{`init -dir DIR/new`, `-dir and -name are required; see -help`},
		{`init -name web`, `-dir and -name are required; see -help`},
		{`init -dir DIR/new -name web extra`, `"extra": arguments must be flags; see -help`},
		{`init -dir DIR/file/x -name web`, `mkdir DIR/file: not a directory`},
		{`init -dir DIR/file -name web`, `mkdir DIR/file: not a directory`},
		{`init -dir DIR/new -name a..b`, `identity: the identity "a..b" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`init -dir DIR/new -name *`, `identity: the identity "*" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{`init -dir DIR/new -name http://a/b`, `identity: the identity "http://a/b" must begin like spiffe://cluster.local/`},
		{`init -dir DIR/new -name spiffe://A/b`, `identity: the trust domain of the identity "spiffe://A/b" must be in lower case`},
		{`init -dir DIR/new -name spiffe://a/b?c`, `identity: the identity "spiffe://a/b?c" must have only a trust domain and a path`},
		{`init -dir DIR/new -name spiffe:///b`, `identity: the identity "spiffe:///b" must begin like spiffe://cluster.local/`},
		{`init -dir DIR/new -name -`, `identity: the identity "-" must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web`},
		{"init -dir DIR/new -name " + long, `identity: the identity `},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a program that starts nevertheless is ended
		var out bytes.Buffer
		err := run(ctx, strings.Fields(strings.ReplaceAll(c.args, "DIR", dir)), &out, io.Discard)
		cancel()
		require.Error(t, err, c.args)
		message := strings.ReplaceAll(err.Error(), dir, "DIR")
		require.True(t, strings.HasPrefix(message, c.want), "%s: %s", c.args, message)
		require.NotContains(t, message, "\n", c.args)
		require.Empty(t, out.String(), c.args) // it does not serve
	}
	for _, args := range [][]string{{"-help"}, {"init", "-help"}} {
		var help bytes.Buffer
		require.ErrorIs(t, run(t.Context(), args, io.Discard, &help), flag.ErrHelp)
		require.Contains(t, help.String(), "-dir directory")
		require.Contains(t, help.String(), "identity init")
	}
}

// Missing tokens are allowed, but a wrong path is logged at the start.
func TestMissingTokenWarning(t *testing.T) {
	dir := t.TempDir()
	for _, tokens := range []string{"-token-file", "-tokens"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var output bytes.Buffer
		args := []string{"-dir", filepath.Join(dir, "ca"), "-listen", "127.0.0.1:0", tokens, filepath.Join(dir, "none")}
		require.NoError(t, run(ctx, args, io.Discard, &output))
		require.Contains(t, output.String(), "level=WARN")
		require.Contains(t, output.String(), "the tokens are missing: no name is certified before they exist")
		require.Contains(t, output.String(), filepath.Join(dir, "none"))
	}
}
