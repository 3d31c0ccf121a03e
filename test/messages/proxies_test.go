package messages

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// link is one way through a proxy: the proxy's address and the recorder behind it. Only one case at
// a time uses a link, so everything that the recorder receives belongs to that case.
type link struct {
	proxy string
	addr  string
	back  *recorder
}

// Names of the proxies.
const (
	ours    = "ours"
	nginx   = "nginx"
	haproxy = "haproxy"
	hyper   = "hyper"
)

// lane contains one link through each proxy.
type lane map[string]link

// newLanes starts the installed proxies, and returns n lanes.
func newLanes(t testing.TB, n int) []lane {
	t.Helper()
	lanes, used := make([]lane, n), make(map[string]bool)
	for i := range lanes {
		lanes[i] = make(lane)
	}
	starts := map[string]func(t testing.TB, links []link){ours: startOurs, nginx: startNginx, haproxy: startHAProxy, hyper: startHyper}
	for name, start := range starts {
		if !installed(name) {
			continue
		}
		links := make([]link, n)
		for i := range links {
			addr := freeport.Addr(t)
			for used[addr] {
				addr = freeport.Addr(t)
			}
			used[addr] = true
			links[i] = link{name, addr, newRecorder(t)}
			lanes[i][name] = links[i]
		}
		start(t, links)
		for _, l := range links {
			require.Eventually(t, func() bool {
				conn, err := net.Dial("tcp", l.addr)
				if err == nil {
					_ = conn.Close()
				}
				return err == nil
			}, time.Minute, 5*time.Millisecond, "%s does not listen", name)
		}
	}
	return lanes
}

func installed(proxy string) bool {
	switch proxy {
	case ours:
		return true
	case hyper:
		return os.Getenv(hyperProgram) != ""
	}
	_, err := exec.LookPath(proxy)
	return err == nil
}

// startOurs starts one of this module's servers per link, with examples/proxy's settings.
func startOurs(t testing.TB, links []link) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	for _, l := range links {
		listener, err := net.Listen("tcp", l.addr)
		require.NoError(t, err)
		endpoint := httplayer.NewEndpoint(ctx, l.back.addr, httplayer.WithKeepVersion(), httplayer.WithCleartextHTTPS())
		server := httplayer.NewServer(httplayer.SingleEndpoint(endpoint), httplayer.WithConnect(), httplayer.WithLogger(nil),
			httplayer.WithHeaderTimeout(0), httplayer.WithMinBodyRate(0, 0))
		served := make(chan error, 1)
		go func() { served <- tcplayer.Serve(ctx, listener, server) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-served)
		})
	}
}

// startProgram runs a program until the test ends.
func startProgram(t testing.TB, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, name, args...)
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = output, output
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		startAttached(cmd, started)
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = output.Close()
		if text, err := os.ReadFile(output.Name()); t.Failed() && err == nil && len(text) > 0 {
			t.Logf("%s:\n%.4000s", name, text)
		}
	})
}

// nginx's and haproxy's limits for headers are raised, so that the tests show what they read.
func startNginx(t testing.TB, links []link) {
	t.Helper()
	dir := t.TempDir()
	var servers strings.Builder
	for i, l := range links {
		fmt.Fprintf(&servers, "upstream b%d { server %s; keepalive 4; }\n", i, l.back.addr)
		fmt.Fprintf(&servers, "server { listen %s; location / { proxy_pass http://b%d; } }\n", l.addr, i)
	}
	conf := fmt.Sprintf(`daemon off;
master_process off;
pid nginx.pid;
error_log error.log info;
events { worker_connections 1024; }
http {
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  access_log off;
  server_tokens off;
  underscores_in_headers on;
  client_header_buffer_size 256k;
  large_client_header_buffers 4 256k;
  client_header_timeout 2s;
  client_body_timeout 2s;
  proxy_http_version 1.1;
  proxy_set_header Host $http_host;
  proxy_set_header Connection '';
  proxy_buffer_size 256k;
  proxy_buffers 8 256k;
  proxy_busy_buffers_size 512k;
  proxy_pass_header Server;
  proxy_pass_header Date;
  proxy_redirect off;
  proxy_read_timeout 2s;
  %s
}
`, servers.String())
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
	startProgram(t, "nginx", "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
}

func startHAProxy(t testing.TB, links []link) {
	t.Helper()
	var proxies strings.Builder
	for i, l := range links {
		fmt.Fprintf(&proxies, "frontend f%d\n  bind %s\n  default_backend b%d\nbackend b%d\n  server s %s\n", i, l.addr, i, i, l.back.addr)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	conf := `global
  nbthread 1
  maxconn 4096
  noreuseport
  tune.bufsize 262144
  tune.http.maxhdr 2000
defaults
  mode http
  retries 0
  timeout connect 5s
  timeout client 2s
  timeout server 2s
  timeout http-request 2s
` + proxies.String()
	require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
	startProgram(t, "haproxy", "-db", "-f", file)
}

// hyperProgram is the environment variable with the path of a reverse proxy that uses hyper,
// linkerd2-proxy's HTTP library. Its arguments are pairs of a listening address and a backend's
// address. It is only needed to measure linkerd2-proxy's column in MESSAGES.md again.
const hyperProgram = "GOTOWER_HYPER"

func startHyper(t testing.TB, links []link) {
	t.Helper()
	var args []string
	for _, l := range links {
		args = append(args, l.addr, l.back.addr)
	}
	startProgram(t, os.Getenv(hyperProgram), args...)
}
