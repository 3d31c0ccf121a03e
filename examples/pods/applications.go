package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// startApplications starts the servers of all pods and waits until they listen. The servers
// do not depend on the proxies.
func (r *running) startApplications(ctx context.Context) error {
	// Both pods serve the same services, so that requests can be balanced.
	for _, p := range []pod{r.web1, r.web2} {
		conf, err := r.nginx(p)
		if err != nil {
			return err
		}
		if err := r.serve(ctx, p, "nginx", r.web, "nginx", "-e", "stderr", "-c", conf); err != nil {
			return err
		}
		if err := r.serve(ctx, p, "http", r.api, r.bin("app"), "http", ":"+r.api.port()); err != nil {
			return err
		}
		if err := r.serve(ctx, p, "grpc", r.echo, r.bin("app"), "grpc", ":"+r.echo.port()); err != nil {
			return err
		}
	}
	if err := r.serve(ctx, r.data, "redis", r.redis, "redis-server", "--port", r.redis.port(),
		"--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", "/tmp"); err != nil {
		return err
	}
	return r.serve(ctx, r.data, "mail", r.mail, r.bin("app"), "mail", ":"+r.mail.port())
}

// serve starts a server for the service s in the pod p, and waits until the server listens. argv
// is the command line. The log file's name begins with name.
func (r *running) serve(ctx context.Context, p pod, name string, s service, argv ...string) error {
	if _, err := r.start(p, app, name+"-"+p.name, nil, argv...); err != nil {
		return err
	}
	return r.listening(ctx, p, s.addr.Port())
}

// listening waits until a process in the pod p listens on port.
func (r *running) listening(ctx context.Context, p pod, port uint16) error {
	return until(ctx, fmt.Sprintf("%s to listen on %d", p.name, port), func() (bool, error) {
		// ss prints the listening TCP sockets with this port, and nothing if there is none.
		out, err := output(command(ctx, p, root, nil, "ss", "-Hltn", fmt.Sprintf("sport = :%d", port)))
		if err != nil {
			return false, err
		}
		// If a program has ended, waiting is useless.
		return out != "", r.alive()
	})
}

// nginx writes a configuration file for nginx in the pod p and returns its path. It responds with
// the pod name and the request URI. While the file at [running.failing] exists, it responds with
// 500 to requests for the service shop.
func (r *running) nginx(p pod) (file string, err error) {
	// nginx runs as another user, and writes only to this directory.
	dir := filepath.Dir(r.failing(p))
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // for another user
		return "", err
	}
	if err := os.Chown(dir, app, app); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "daemon off;\nworker_processes 1;\npid %s/pid;\nevents {}\nhttp {\n\taccess_log off;\n", dir)
	// nginx creates these at the start, even if they are not used.
	for _, temp := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&b, "\t%s_temp_path %s/%s;\n", temp, dir, temp)
	}
	// nginx cannot combine two conditions, so the file's existence and the host end up in one variable.
	fmt.Fprintf(&b, "\tserver {\n\t\tlisten %d;\n\t\tlocation / {\n\t\t\tdefault_type text/plain;\n", r.web.addr.Port())
	fmt.Fprintf(&b, "\t\t\tset $fail $host; if (-f %s) { set $fail fail:$host; }\n", r.failing(p))
	fmt.Fprintf(&b, "\t\t\tif ($fail = fail:%s) { return 500 \"%s $request_uri\\n\"; }\n", r.shop.host(), p.name)
	fmt.Fprintf(&b, "\t\t\treturn 200 \"%s $request_uri\\n\";\n\t\t}\n\t}\n}\n", p.name)
	file = dir + "/nginx.conf"
	return file, os.WriteFile(file, []byte(b.String()), 0o644) //nolint:gosec // for another user
}

// failing returns the path of a file that makes nginx in the pod p fail. While the file exists,
// nginx responds to requests to the service shop with 500.
func (r *running) failing(p pod) string { return r.path("run", "nginx-"+p.name, "failing") }
