package main

import (
	"bytes"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// asProxy makes this test program run the proxy itself.
const asProxy = "GOTOWER_TEST_AS_PROXY"

func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// proxy runs the program with only these environment variables.
func proxy(t *testing.T, environ []string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(environ, asProxy+"=1")
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		var ended *exec.ExitError
		require.ErrorAs(t, err, &ended)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestExitInvalidConfiguration(t *testing.T) {
	exit, stdout, stderr := proxy(t, []string{"LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=soon", "LINKERD2_PROXY_CORES=many"})
	require.Equal(t, 64, exit)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "Invalid configuration")
	require.Contains(t, stderr, `LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT="soon": must be digits and a unit`)
	require.Contains(t, stderr, "LINKERD2_PROXY_DESTINATION_SVC_ADDR: is not set")
	require.NotContains(t, stderr, "CORES", "that is passed over, with a warning once there is a log")

	file := filepath.Join(t.TempDir(), "proxy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("destination_svc_addr: a:1\nlog: loud=loud\nnothing: 1\n"), 0o600))
	exit, _, stderr = proxy(t, nil, "--config", file)
	require.Equal(t, 64, exit)
	require.Contains(t, stderr, file+":2:6: log=")
	require.Contains(t, stderr, file+":3:10: nothing: is unknown")

	for _, args := range [][]string{{"--no-such-flag"}, {"stray"}, {"--config", filepath.Join(t.TempDir(), "none")}} {
		exit, _, stderr = proxy(t, nil, args...)
		require.Equal(t, 64, exit, args)
		require.Contains(t, stderr, "Run with --help")
	}
}

// Errors in an identity's files are reported together with all other errors.
func TestExitInvalidIdentity(t *testing.T) {
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	environ := func(more ...string) []string {
		return append(more, "LINKERD2_PROXY_DESTINATION_SVC_ADDR=127.0.0.1:1", "LINKERD2_PROXY_IDENTITY_SVC_ADDR=127.0.0.1:2",
			"LINKERD2_PROXY_IDENTITY_DIR="+dir, "LINKERD2_PROXY_IDENTITY_TOKEN_FILE="+token,
			"LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS="+string(authority.TrustAnchors()),
			"LINKERD2_PROXY_ADMIN_LISTEN_ADDR=203.0.113.1:1", "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR=127.0.0.1:0",
			"LINKERD2_PROXY_INBOUND_LISTEN_ADDR=127.0.0.1:0", "LINKERD2_PROXY_CONTROL_LISTEN_ADDR=127.0.0.1:0")
	}
	const name = "LINKERD2_PROXY_IDENTITY_LOCAL_NAME="
	exit, _, stderr := proxy(t, environ(name+"web.default", "LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=soon"))
	require.Equal(t, 64, exit, stderr)
	for _, problem := range []string{"OUTBOUND_CONNECT_TIMEOUT=\"soon\"", token, "key.p8", "csr.der"} {
		require.Contains(t, stderr, problem)
	}
	exit, _, stderr = proxy(t, environ(name+"10.0.0.1"))
	require.Equal(t, 64, exit)
	require.Contains(t, stderr, name+`"10.0.0.1": must be a DNS name`)

	require.NoError(t, identity.Generate(dir, "web.default"))
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	exit, _, stderr = proxy(t, environ(name+"db.default"))
	require.Equal(t, 64, exit)
	require.Contains(t, stderr, "is for web.default, not for db.default")
	exit, _, stderr = proxy(t, environ(name+"web.default"))
	require.Equal(t, 1, exit, "the only error is an address that this machine does not have: %s", stderr)
}

// The generated key and signing request match the identity.
func TestGenerateIdentity(t *testing.T) {
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	environ := map[string]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR": "127.0.0.1:1", "LINKERD2_PROXY_IDENTITY_SVC_ADDR": "127.0.0.1:2",
		"LINKERD2_PROXY_IDENTITY_DIR": dir, "LINKERD2_PROXY_IDENTITY_TOKEN_FILE": token,
		"LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS": string(authority.TrustAnchors()),
		"LINKERD2_PROXY_IDENTITY_LOCAL_NAME":    "web.default", "GOTOWER_IDENTITY_GENERATE": "true",
	}
	lookup := func(name string) (string, bool) { value, ok := environ[name]; return value, ok }
	delete(environ, "GOTOWER_IDENTITY_GENERATE")
	_, err = read(nil, lookup, t.Output())
	require.NoError(t, err, "an empty directory gets a key")
	first, err := os.ReadFile(filepath.Join(dir, "csr.der"))
	require.NoError(t, err)
	_, err = read(nil, lookup, t.Output())
	require.NoError(t, err)
	second, err := os.ReadFile(filepath.Join(dir, "csr.der"))
	require.NoError(t, err)
	require.Equal(t, first, second, "which remains")
	environ["GOTOWER_IDENTITY_GENERATE"] = "true"
	for range 2 {
		s, err := read(nil, lookup, t.Output())
		require.NoError(t, err)
		_, err = s.Identity.Load()
		require.NoError(t, err)
	}
	environ["GOTOWER_IDENTITY_GENERATE"] = "false"
	environ["LINKERD2_PROXY_IDENTITY_LOCAL_NAME"] = "db.default"
	_, err = read(nil, lookup, t.Output())
	require.ErrorContains(t, err, "is for web.default, not for db.default")
}

func TestAwaits(t *testing.T) {
	for line, want := range map[string]string{
		"/proxy await 127.0.0.1:1 5s": "127.0.0.1:1 5s", "/proxy await": "", "/usr/lib/linkerd/linkerd-await": "127.0.0.1:4191 2m",
		"linkerd-await --timeout=3m --port=4999": "127.0.0.1:4999 3m",
	} {
		args, ok := awaits(strings.Fields(line))
		require.True(t, ok, line)
		require.Equal(t, want, strings.Join(args, " "), line)
	}
	_, ok := awaits([]string{"/proxy", "--config", "await"})
	require.False(t, ok)
}

func TestAwait(t *testing.T) {
	var ready atomic.Bool
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" || !ready.Swap(true) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(admin.Close)
	addr := admin.Listener.Addr().String()
	require.NoError(t, await([]string{addr}))
	require.True(t, ready.Load())
	ready.Store(false)
	require.ErrorContains(t, await([]string{addr, "10ms"}), "is not ready after 10ms: ")
	require.EqualError(t, await([]string{"localhost"}), `address "localhost": must be ip:port`)
	require.EqualError(t, await([]string{addr, "10"}), `timeout "10": must be a duration such as 30s`)
	exit, _, stderr := proxy(t, nil, "await", addr, "soon")
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, "soon")
}

// The runtime's default is the cgroup's limit, not the machine's number of processors.
func TestProcessors(t *testing.T) {
	more := strconv.Itoa(runtime.NumCPU() + 1)
	exit, _, stderr := proxy(t, []string{
		"GOMAXPROCS=" + more, "LINKERD2_PROXY_CORES=" + more, "LINKERD2_PROXY_LOG=info", "LINKERD2_PROXY_LOG_FORMAT=json",
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR=127.0.0.1:1", "LINKERD2_PROXY_ADMIN_LISTEN_ADDR=203.0.113.1:1",
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR=127.0.0.1:0", "LINKERD2_PROXY_INBOUND_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR=127.0.0.1:0",
	})
	require.Equal(t, 1, exit, stderr)
	require.Contains(t, stderr, `"message":"using processors","n":`+more+`,"of":`+more)
	require.NotContains(t, stderr, "fewer processors")
}

func TestExitInitializationFailure(t *testing.T) {
	exit, _, stderr := proxy(t, []string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR=127.0.0.1:1", "LINKERD2_PROXY_LOG=info", "LINKERD2_PROXY_LOG_FORMAT=json",
		"LINKERD2_PROXY_IDENTITY_SPIRE_SOCKET=/run/spire", "LINKERD2_PROXY_CORES=1",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR=203.0.113.1:1", // of a network for documentation
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR=127.0.0.1:0", "LINKERD2_PROXY_INBOUND_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR=127.0.0.1:0",
	})
	require.Equal(t, 1, exit, stderr)
	require.Contains(t, stderr, `"warning":"LINKERD2_PROXY_IDENTITY_SPIRE_SOCKET is ignored`)
	require.Contains(t, stderr, `"message":"using processors"`)
	require.Contains(t, stderr, "203.0.113.1:1")
}

func TestHelp(t *testing.T) {
	exit, stdout, _ := proxy(t, nil, "--help")
	require.Zero(t, exit)
	var all strings.Builder
	require.NoError(t, settings.Help(&all))
	require.Contains(t, stdout, "usage: proxy [--config file.yaml]")
	require.True(t, strings.HasSuffix(stdout, all.String()))
}

func TestRead(t *testing.T) {
	lookup := func(name string) (string, bool) {
		return "127.0.0.1:8086", name == "LINKERD2_PROXY_DESTINATION_SVC_ADDR"
	}
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("outbound: {connect_timeout: 7s}"), 0o600))
	s, err := read([]string{"-config", file}, lookup, t.Output())
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, s.Outbound.Connect.Timeout)
	_, err = read([]string{"-h"}, lookup, t.Output())
	require.ErrorIs(t, err, flag.ErrHelp)
}
