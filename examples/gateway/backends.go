package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// table is the backends by their names.
type table map[string][]resolve.Endpoint

func (t table) String() string { return "" }

func (t table) Set(entry string) error {
	name, addrs, ok := strings.Cut(entry, "=")
	if !ok {
		return fmt.Errorf("%q has no address: want name:port=ip:port", entry)
	}
	if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is no name with a port: want name:port=ip:port", name)
	}
	endpoints, err := static.Endpoints(strings.Split(addrs, ",")...)
	if err != nil {
		return err
	}
	t[name] = append(t[name], endpoints...)
	return nil
}

// start adds the three that the gateway has of its own.
func (t table) start(g *serve.Group) error {
	for _, version := range []string{"v1", "v2", "next"} {
		addr := g.HTTP("books "+version, "127.0.0.1:0", books(version))
		if err := g.Err(); err != nil {
			return err
		}
		if err := t.Set("books-" + version + ".example:80=" + addr); err != nil {
			return err
		}
	}
	return nil
}

// names are those that there are, in order.
func (t table) names() []string { return slices.Sorted(maps.Keys(t)) }
