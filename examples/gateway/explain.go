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

// addField adds the field to header. A field is a name and a value, such as "X-User: 7".
func addField(header http.Header, field string) error {
	name, value, ok := strings.Cut(field, ":")
	if !ok {
		return errors.New("want a header field such as 'X-User: 7'")
	}
	header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	return nil
}

// explain implements the command "explain". It prints the route and the services that a
// request would use, without sending it.
func explain(ctx context.Context, file, method, address string, header http.Header, stdout io.Writer) error {
	c, err := config.Load(file)
	if err != nil {
		return err
	}
	if c.Kubernetes != nil {
		if c, err = withCluster(ctx, c); err != nil {
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
	u.Host = cmp.Or(header.Get("Host"), u.Host)
	header.Del("Host")
	req := &http.Request{Method: method, URL: u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	for _, l := range listeners {
		fmt.Fprintf(stdout, "listener %s:\n", l.Name)
		ctx := context.WithValue(ctx, listenerKey{}, string(l.Name))
		if err := explainOne(ctx, c, normalPath(req.WithContext(ctx)), stdout); err != nil {
			return err
		}
	}
	return nil
}

// listenersOf returns the listeners with the scheme and the port of u. If no listener has
// both, it returns all listeners with the scheme, because a load balancer in front of the
// gateway can change the port.
func listenersOf(c *config.Config, u *url.URL) (all []*config.Listener) {
	port := ":" + cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	samePort := false
	for i := range c.Listeners {
		l := &c.Listeners[i]
		has := strings.HasSuffix(string(l.Address), port)
		if (l.Protocol == "HTTPS") != (u.Scheme == "https") || samePort && !has {
			continue
		}
		if has && !samePort {
			samePort, all = true, nil
		}
		all = append(all, l)
	}
	return all
}

// withCluster returns c together with the listeners, services and routes of the Kubernetes
// cluster that c specifies.
func withCluster(ctx context.Context, c *config.Config) (*config.Config, error) {
	w, err := kube.New(c.Kubernetes, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cluster, err := w.Read(ctx)
	if err != nil {
		return nil, err
	}
	return c.Merge(cluster)
}

// explainOne prints the route and the services that the gateway would use for req on one
// listener. The name of this listener is in ctx. The route is found by package profiles,
// as in the gateway.
func explainOne(ctx context.Context, c *config.Config, req *http.Request, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := ""
	record := func(def profiles.Route, _ httplayer.Service) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			found = def.Name
			return nil, errExplained
		})
	}
	var source profiles.Static
	source.Set(target, c.Profile())
	nothing := func(string) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return nil, errExplained
		})
	}
	router := profiles.New(ctx, target, &source, accessor{}, nothing,
		profiles.WithPerRoute(record), profiles.WithInitialWait[*http.Request, *http.Response](1<<62))
	ctx, why := layer.Explain(ctx)
	if _, err := router.Call(ctx, req); !errors.Is(err, errExplained) {
		return err
	}
	if found == "" {
		fmt.Fprintln(stdout, "  route    none: status 404")
	}
	for i := range c.Routes {
		if r := &c.Routes[i]; string(r.Name) == found {
			fmt.Fprintf(stdout, "  route    %s\n  action   %s\n", found, r.Describe())
			for _, b := range r.BackendRefs {
				fmt.Fprintf(stdout, "  service  %s\n", c.Service(b.Name).Describe())
			}
		}
	}
	fmt.Fprintf(stdout, "  because  %s\n", strings.ReplaceAll(strings.TrimSpace(why.String()), "\n", "\n           "))
	return nil
}

var errExplained = errors.New("the request is only explained")
