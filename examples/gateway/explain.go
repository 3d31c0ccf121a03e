package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/kube"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// explain prints which route and services a request would use, without sending it. It fails if no
// listener has a route for the request.
func explain(ctx context.Context, line *commandLine) error {
	method := line.args[1]
	address := line.args[2]
	header := line.header
	stdout := line.stdout
	c, err := config.Load(line.args[0])
	if err != nil {
		return err
	}
	if c.Kubernetes != nil {
		if c, err = withCluster(ctx, c); err != nil {
			// The cluster's routes are part of the configuration.
			return err
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return cli.Misuse(fmt.Errorf("%q: want a URL such as http://books.example/books", address))
	}
	listeners := listenersOf(c, u)
	if len(listeners) == 0 {
		return fmt.Errorf("no listener serves %s", u.Scheme)
	}
	// In HTTP, the Host is no header in Go's requests.
	u.Host = cmp.Or(header.Get("Host"), u.Host)
	header.Del("Host")
	req := &http.Request{
		Method: method, URL: u, Host: u.Host, Header: header, RemoteAddr: line.client,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	anyRoute := false
	// The first listener need not be the one that the client reaches, so explain all that match.
	for _, l := range listeners {
		fmt.Fprintf(stdout, "listener %s:\n", l.Name)
		ctx := context.WithValue(ctx, listenerKey{}, string(l.Name))
		// Each listener may change the path in its own way.
		normal := req.WithContext(ctx)
		if l.Path.Normalize {
			path, err := l.Path.Policy().Normalize(httplayer.HTTP{}.Path(req))
			if err != nil {
				fmt.Fprintf(stdout, "  route    none: status 400: %v\n", err)
				continue
			}
			normal.URL = withPath(u, path)
		}
		hasRoute, err := explainOne(ctx, c, normal, stdout)
		if err != nil {
			return err
		}
		anyRoute = anyRoute || hasRoute
	}
	if !anyRoute {
		return errors.New("no route matches the request")
	}
	return nil
}

// listenersOf returns the listeners that match u's scheme and port. If no port matches, it
// returns all listeners with the scheme, because a load balancer in front of the gateway may use
// another port.
func listenersOf(c *config.Config, u *url.URL) (all []*config.Listener) {
	// Compare by port, because the address is usually that of all interfaces.
	port := ":" + cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	samePort := false
	for i := range c.Listeners {
		l := &c.Listeners[i]
		portMatches := strings.HasSuffix(string(l.Address), port)
		if !strings.EqualFold(l.Protocol, u.Scheme) || samePort && !portMatches {
			continue
		}
		// The first match by port replaces those that only match by scheme.
		if portMatches && !samePort {
			samePort = true
			all = nil
		}
		all = append(all, l)
	}
	return all
}

// withCluster adds the Kubernetes cluster's listeners, services and routes to c.
func withCluster(ctx context.Context, c *config.Config) (*config.Config, error) {
	w, err := kube.New(c.Kubernetes, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return nil, err
	}
	// Reading a large cluster takes time, but a wrong address must not hang forever.
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cluster, err := w.Read(ctx)
	if err != nil {
		return nil, err
	}
	return c.Merge(cluster)
}

// explainOne prints the route and services for req on the listener named in ctx, and returns
// false if there is no route. It asks package profiles, as the gateway does, so that both always
// agree.
func explainOne(ctx context.Context, c *config.Config, req *http.Request, stdout io.Writer) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	routeName := ""
	// record stands for the layers of a route. It remembers the route and sends nothing.
	record := func(def profiles.Route, _ httplayer.Service) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			routeName = def.Name
			return nil, errExplained
		})
	}
	var source profiles.Static
	source.Set(target, c.Profile())
	// nothing stands for a service. It ends the request without sending it.
	nothing := func(string) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return nil, errExplained
		})
	}
	// The profile is already set, so the long wait never happens.
	router := profiles.New(ctx, profiles.Config{Target: target, Source: &source, InitialWait: 1 << 62}, accessor{}, nothing,
		profiles.WithPerRoute(record))
	// The router adds the reasons for its decision to explanation.
	ctx, explanation := layer.Explain(ctx)
	// Every way through the router ends with this error.
	if _, err := router.Call(ctx, req); !errors.Is(err, errExplained) {
		return false, err
	}
	// Without a route, record has not been called.
	if routeName == "" {
		fmt.Fprintln(stdout, "  route    none: status 404")
	}
	for i := range c.Routes {
		if r := &c.Routes[i]; string(r.Name) == routeName {
			fmt.Fprintf(stdout, "  route    %s\n  action   %s\n", routeName, r.Describe())
			for _, b := range r.BackendRefs {
				fmt.Fprintf(stdout, "  service  %s\n", c.Service(b.Name).Describe())
			}
			if limits := r.DescribeLimits(); limits != "" {
				fmt.Fprintf(stdout, "  limits   %s\n", limits)
			}
		}
	}
	// The router knows the listener by a header's name.
	reasons := strings.NewReplacer(fmt.Sprintf("header %q", config.ListenerHeader), "listener", "\n", "\n           ")
	fmt.Fprintf(stdout, "  because  %s\n", reasons.Replace(strings.TrimSpace(explanation.String())))
	return routeName != "", nil
}

// errExplained ends a request that was sent only to find its route.
var errExplained = errors.New("the request is only explained")
