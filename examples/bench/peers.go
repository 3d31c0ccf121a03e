package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// peer is another program, such as nginx. Those of other projects are compared if they are in PATH.
type peer struct {
	program string
	// args returns the arguments of the program. file is the configuration, and dir is where it stores other
	// files.
	args func(dir, file string) []string
	// config returns the configuration for one protocol.
	config func(protocol, listen, backend string) string
}

// peers returns the programs of other projects.
func peers() []peer {
	return []peer{
		{"nginx", func(dir, file string) []string { return []string{"-p", dir, "-c", file} }, nginxConfig},
		{"haproxy", func(_, file string) []string { return []string{"-db", "-f", file} }, haproxyConfig},
	}
}

// version returns the program's version, or "" if it is not installed.
func (p peer) version(ctx context.Context) string {
	text, _ := exec.CommandContext(ctx, p.program, "-v").CombinedOutput() //nolint:gosec // nginx or haproxy
	return regexp.MustCompile(`\d+(\.\d+)+`).FindString(string(text))
}

// start starts the peer with one thread in front of the backend, and waits until it accepts
// connections.
func (p peer) start(ctx context.Context, b *bench, protocol string) (*process, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	// The peer listens on the port itself, after it was found to be free.
	l.Close()
	file := filepath.Join(b.dir, filepath.Base(p.program)+".conf")
	if err := os.WriteFile(file, []byte(p.config(protocol, addr, b.backend.addr)), 0o600); err != nil {
		return nil, err
	}
	proxy, err := start(exec.CommandContext(ctx, p.program, p.args(b.dir, file)...), b.proxyCPUs) //nolint:gosec // a known proxy
	if err != nil {
		return nil, err
	}
	// The peer listens after a short time, or ends with an error.
	for {
		if conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr); err == nil {
			proxy.addr = addr
			conn.Close()
			return proxy, nil
		}
		select {
		case <-proxy.ended:
			return nil, fmt.Errorf("%s ended: %s", p.program, proxy.errors.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// nginxConfig returns the configuration of nginx with one worker.
func nginxConfig(protocol, listen, backend string) string {
	// nginx forwards gRPC with another directive than HTTP/1.1.
	http2 := ""
	location := "proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection '';"
	if isGRPC(protocol) {
		http2 = "http2"
		location = "grpc_pass grpc://b;"
	}
	return fmt.Sprintf(`daemon off;
master_process off;
pid nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  access_log off;
  client_max_body_size 0;
  keepalive_requests 1000000000;
  upstream b { server %s; keepalive 256; keepalive_requests 1000000000; }
  server { listen %s %s; location / { %s } }
}
`, backend, listen, http2, location)
}

// haproxyConfig returns the configuration of haproxy with one thread.
func haproxyConfig(protocol, listen, backend string) string {
	// Without TLS, haproxy must be told to use HTTP/2 on both sides.
	proto := ""
	if isGRPC(protocol) {
		proto = "proto h2"
	}
	return fmt.Sprintf(`global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind %s %s
  default_backend b
backend b
  server s %s %s pool-max-conn -1
`, listen, proto, backend, proto)
}
