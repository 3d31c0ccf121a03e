package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// startApplications runs the servers, which know nothing of the proxies.
func (r *running) startApplications(ctx context.Context) error {
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

// serve runs a server and waits until it listens.
func (r *running) serve(ctx context.Context, p pod, name string, s service, argv ...string) error {
	if _, err := r.start(p, app, name+"-"+p.name, nil, argv...); err != nil {
		return err
	}
	return r.listening(ctx, p, s.addr.Port())
}

func (r *running) listening(ctx context.Context, p pod, port uint16) error {
	return until(ctx, fmt.Sprintf("%s to listen on %d", p.name, port), func() (bool, error) {
		out, err := output(command(ctx, p, root, nil, "ss", "-Hltn", fmt.Sprintf("sport = :%d", port)))
		if err != nil {
			return false, err
		}
		return out != "", r.alive()
	})
}

// nginx writes a configuration that responds with the name of the pod and the request.
func (r *running) nginx(p pod) (file string, err error) {
	dir := r.path("run", "nginx-"+p.name)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // for another user
		return "", err
	}
	if err := os.Chown(dir, app, app); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "daemon off;\nworker_processes 1;\npid %s/pid;\nevents {}\nhttp {\n\taccess_log off;\n", dir)
	for _, temp := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&b, "\t%s_temp_path %s/%s;\n", temp, dir, temp)
	}
	fmt.Fprintf(&b, "\tserver {\n\t\tlisten %d;\n\t\tlocation / { default_type text/plain; return 200 \"%s $request_uri\\n\"; }\n\t}\n}\n",
		r.web.addr.Port(), p.name)
	file = dir + "/nginx.conf"
	return file, os.WriteFile(file, []byte(b.String()), 0o644) //nolint:gosec // for another user
}
