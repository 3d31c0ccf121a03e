package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// explain prints the route and the services of a request. Nothing is sent. The arguments
// are FILE METHOD URL, and header fields after -H.
func explain(ctx context.Context, args []string, stdout io.Writer) error {
	var plain []string
	header := make(http.Header)
	for i := 0; i < len(args); i++ {
		if args[i] != "-H" {
			plain = append(plain, args[i])
			continue
		}
		i++
		if i == len(args) || !strings.Contains(args[i], ":") {
			return cli.Misuse(errors.New("want a header field after -H, such as -H 'X-User: 7'"))
		}
		name, value, _ := strings.Cut(args[i], ":")
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if len(plain) != 3 {
		return cli.Misuse(errors.New("want explain FILE METHOD URL [-H 'Name: value']"))
	}
	c, err := config.Load(plain[0])
	if err != nil {
		return err
	}
	u, err := url.Parse(plain[2])
	if err != nil || u.Host == "" {
		return cli.Misuse(fmt.Errorf("%q: want a URL such as http://books.example/books", plain[2]))
	}
	req := &http.Request{Method: plain[1], URL: u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		if (l.Protocol == "HTTPS") != (u.Scheme == "https") {
			continue
		}
		fmt.Fprintf(stdout, "listener %s:\n", l.Name)
		ctx := context.WithValue(ctx, listenerKey{}, string(l.Name))
		if err := explainOne(ctx, c, req.WithContext(ctx), stdout); err != nil {
			return err
		}
	}
	return nil
}

// explainOne prints the route of a request by the matching of package profiles.
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
		return nil
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
