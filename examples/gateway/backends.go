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

// table has the endpoints of the backends by name.
type table map[string][]resolve.Endpoint

func (t table) String() string { return "" }

func (t table) Set(entry string) error {
	name, addrs, ok := strings.Cut(entry, "=")
	if !ok {
		return fmt.Errorf("%q: must be name:port=ip:port", entry)
	}
	if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
		return fmt.Errorf("%q: must be name:port=ip:port", entry)
	}
	endpoints, err := static.Endpoints(strings.Split(addrs, ",")...)
	if err != nil {
		return err
	}
	t[name] = append(t[name], endpoints...)
	return nil
}

// start adds the three built-in backends.
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

// names returns the names, sorted.
func (t table) names() []string { return slices.Sorted(maps.Keys(t)) }
