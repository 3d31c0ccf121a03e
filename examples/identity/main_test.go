package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"io"
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

func TestInvalidArguments(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "half"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "half", "issuer.key"), nil, 0o600))
	for _, c := range []struct{ args, want string }{
		{"", "-dir is required; see -help"},
		{"-nonsense", "flag provided but not defined: -nonsense; see -help"},
		{"-dir x y", `"y": arguments must be flags; see -help`},
		{"-dir " + dir, "-token-file or -tokens is required, but not both"},
		{"-dir " + dir + " -token-file a -tokens b", "-token-file or -tokens is required, but not both"},
		{"-dir " + dir + " -token-file a -lifetime -1s", "-lifetime -1s: must be at least 20s, because proxies"},
		{
			"-dir " + dir + " -token-file a -lifetime 19s",
			"-lifetime 19s: must be at least 20s, because proxies renew at most every 10s; see -help",
		},
		{"-dir " + dir + " -kubernetes -tokens a", "-kubernetes does not use -token-file and -tokens"},
		{"-dir " + dir + " -token-file a -kubeconfig b", "-kubeconfig requires -kubernetes"},
		{"-dir " + dir + " -kubernetes -kubeconfig " + file + "x", "no such file"},
		{"-dir " + dir + " -kubernetes", "in-cluster configuration"},
		{"-dir " + dir + " -token-file " + dir, "must be a file; use -tokens for a directory; see -help"},
		{"-dir " + dir + " -tokens " + file, "must be a directory; use -token-file for a file; see -help"},
		{"-dir " + dir + "/half -token-file a", "restore the missing files"},
		{"-dir " + file + "/x -token-file a", "not a directory"},
		{"-dir " + dir + "/ca -tokens a -listen 127.0.0.1:none", "listen tcp"},
		{"-dir " + dir + "/ca -tokens a -listen 127.0.0.1:0 -name *", "must be DNS-like"},
		{"-dir " + dir + "/ca -tokens a -listen 127.0.0.1:0 -name ca.identity.example.org", "does not belong to the trust domain cluster.local"},
		{"init", "-dir and -name are required; see -help"},
		{"init -dir " + dir + " -name a..b", "must be DNS-like"},
		{"init -dir " + file + "/x -name web", "not a directory"},
		{"init -nonsense", "flag provided but not defined: -nonsense; see -help"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a program that starts nevertheless is ended
		var out bytes.Buffer
		err := run(ctx, strings.Fields(c.args), &out, io.Discard)
		cancel()
		require.ErrorContains(t, err, c.want, c.args)
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
