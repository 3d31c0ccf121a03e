package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// gateways returns the gateways to compare: examples/gateway, whose program is built, nginx, Caddy
// and Traefik.
func gateways(built string) []gateway {
	return []gateway{
		{
			name: "gateway", program: built, files: gatewayFiles, reload: signalReload,
			args: func(dir string) []string { return []string{"run", filepath.Join(dir, "gateway.yaml")} },
		},
		{
			name: "nginx", program: "nginx", versionArg: "-v", files: nginxFiles, reload: signalReload,
			args: func(dir string) []string { return []string{"-p", dir, "-c", filepath.Join(dir, "nginx.conf")} },
		},
		{
			name: "caddy", program: "caddy", versionArg: "version", files: caddyFiles, reload: caddyReload,
			args: func(dir string) []string {
				return []string{"run", "--config", filepath.Join(dir, "caddy.json")}
			},
		},
		{
			name: "traefik", program: "traefik", versionArg: "version", files: traefikFiles,
			args: func(dir string) []string { return []string{"--configFile=" + filepath.Join(dir, "traefik.yaml")} },
			// Traefik watches the file.
			reload: func(context.Context, gateway, *process, gatewaySettings) error { return nil },
		},
	}
}

// eachRoute formats each of s's routes and joins the results. In format, %[1]s is a route's path
// and %[2]d its number.
func eachRoute(s gatewaySettings, format string) string {
	var text strings.Builder
	for i := range s.routes {
		fmt.Fprintf(&text, format, routePath(i), i)
	}
	return text.String()
}

// gatewayFiles returns the configuration of examples/gateway, with s.routes routes.
func gatewayFiles(s gatewaySettings) map[string]string {
	const route = `- name: route-%[2]d
  matches: [{path: {prefix: %[1]s}}]
  backendRefs: [{name: backend}]
`
	return map[string]string{"gateway.yaml": fmt.Sprintf(`listeners: [{name: http, address: "%s"}]
admin: {address: "%s", tap: "off"}
accessLog: {format: json, path: access.log}
services: [{name: backend, static: {addresses: ["%s"]}}]
defaults:
  routes:
    retry: {attempts: 1, codes: [502, 503, 504]}
    responseHeaderModifier: {set: [{name: %s, value: "%d"}]}
routes:
`, s.listen, s.admin, strings.Join(s.backends, `", "`), generationHeader, s.generation) + eachRoute(s, route)}
}

// gatewayConfig is the configuration of examples/gateway in the comparison with other proxies. It
// includes an access log, metrics, an idle tap, a retry and a header edit.
func gatewayConfig(protocol, listen, backend string) string {
	// Over gRPC, the backend must be reached over HTTP/2.
	service := "HTTP1"
	if isGRPC(protocol) {
		service = "HTTP2"
	}
	return fmt.Sprintf(`listeners: [{name: http, address: "%s"}]
admin: {address: "%s", tap: "%s"}
accessLog: {format: json, path: access.log}
services: [{name: backend, protocol: %s, static: {addresses: ["%s"]}}]
routes:
- name: all
  backendRefs: [{name: backend}]
  retry: {attempts: 1, codes: [502, 503, 504]}
  requestHeaderModifier: {set: [{name: X-Gateway, value: bench}]}
`, listen, freeAddress(), freeAddress(), service, backend)
}

// nginxFiles returns nginx's configuration.
func nginxFiles(s gatewaySettings) map[string]string {
	// Only a master process can reload the configuration. It costs CPU time, so other runs leave it out.
	process := "off"
	if s.master {
		process = "on"
	}
	return map[string]string{"nginx.conf": fmt.Sprintf(`daemon off;
master_process %s;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  log_format line escape=json '{"time":"$time_iso8601","client":"$remote_addr","method":"$request_method","uri":"$request_uri",'
    '"status":$status,"bytes":$body_bytes_sent,"duration":$request_time,"upstream":"$upstream_addr"}';
  access_log access.log line;
  keepalive_requests 1000000000;
  upstream b { server %s; keepalive 256; keepalive_requests 1000000000; }
  proxy_http_version 1.1;
  proxy_set_header Connection '';
  proxy_set_header Host $host;
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
  proxy_next_upstream error timeout http_502 http_503 http_504;
  proxy_next_upstream_tries 2;
  add_header %s %d;
  server { listen %s; location / { stub_status; } }
  server {
    listen %s backlog=1024;
%s  }
}
`, process, strings.Join(s.backends, "; server "), generationHeader, s.generation, s.admin, s.listen,
		eachRoute(s, "    location %[1]s { proxy_pass http://b; }\n"))}
}

// caddyFiles returns Caddy's configuration. It is in JSON, because converting a Caddyfile with many
// routes takes Caddy longer than the reload itself.
func caddyFiles(s gatewaySettings) map[string]string {
	// Each route begins with a comma, because it follows the first one, which sets the header. %%[1]s is for
	// eachRoute.
	route := fmt.Sprintf(`,
{"match": [{"path": ["%%[1]s/*"]}], "terminal": true, "handle": [{"handler": "reverse_proxy", "load_balancing": {"retries": 1},
  "upstreams": [{"dial": "%s"}],
  "transport": {"protocol": "http", "compression": false, "keep_alive": {"max_idle_conns_per_host": 256}}}]}`,
		strings.Join(s.backends, `"}, {"dial": "`))
	return map[string]string{"caddy.json": fmt.Sprintf(`{
"admin": {"listen": "%s", "config": {"persist": false}},
"logging": {"logs": {
  "default": {"writer": {"output": "discard"}, "exclude": ["http.log.access"]},
  "access": {"writer": {"output": "file", "filename": "access.log", "roll": false}, "encoder": {"format": "json"},
    "include": ["http.log.access"]}}},
"apps": {"http": {"metrics": {}, "servers": {"http": {
  "listen": ["%s"], "protocols": ["h1"], "automatic_https": {"disable": true}, "logs": {}, "routes": [
{"handle": [{"handler": "headers", "response": {"set": {"%s": ["%d"]}}}]}%s]}}}}}
`, s.admin, s.listen, generationHeader, s.generation, eachRoute(s, route))}
}

// caddyReload runs "caddy reload", which returns when Caddy uses the new file.
func caddyReload(ctx context.Context, g gateway, _ *process, s gatewaySettings) error {
	cmd := g.command(ctx, s.dir, "reload", "--config", filepath.Join(s.dir, "caddy.json"), "--address", s.admin)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("caddy reload: %w: %s", err, text)
	}
	return nil
}

// traefikFiles returns Traefik's configuration: its settings, and the routes in another file, which it watches.
func traefikFiles(s gatewaySettings) map[string]string {
	route := "    route-%[2]d: {rule: \"PathPrefix(`%[1]s`)\", service: backend, middlewares: [again, generation]}\n"
	// Traefik only watches the file with the routes. Its own settings need a restart.
	return map[string]string{
		"traefik.yaml": fmt.Sprintf(`global: {checkNewVersion: false, sendAnonymousUsage: false}
log: {level: ERROR}
entryPoints:
  web: {address: "%s"}
  metrics: {address: "%s"}
providers:
  providersThrottleDuration: 100ms
  file: {filename: "%s", watch: true}
accessLog: {filePath: access.log, format: json}
metrics: {prometheus: {entryPoint: metrics, addRoutersLabels: true}}
`, s.listen, s.admin, filepath.Join(s.dir, "routes.yaml")),
		"routes.yaml": fmt.Sprintf(`http:
  middlewares:
    again: {retry: {attempts: 2}}
    generation: {headers: {customResponseHeaders: {%s: "%d"}}}
  services:
    backend: {loadBalancer: {servers: [{url: "http://%s"}]}}
  routers:
`, generationHeader, s.generation, strings.Join(s.backends, `"}, {url: "http://`)) + eachRoute(s, route),
	}
}
