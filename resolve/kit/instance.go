package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/resolve"
)

// news is an item to yield.
type news struct {
	update resolve.Update
	err    error
}

// reader makes news of events, for one stream.
type reader struct {
	options

	target string
	known  map[string][]resolve.Endpoint // by instance, as of the last event
	amiss  map[string]bool               // the instances that could not be read then
}

// event returns the news of an event: first what is wrong with it, but for what
// was wrong before. An error at every event would be a source that is never well.
func (r *reader) event(ctx context.Context, e sd.Event) []news {
	if e.Err != nil {
		return []news{{err: fmt.Errorf("kit: %q: %w", r.target, e.Err)}}
	}
	var (
		list      []news
		endpoints []resolve.Endpoint
		known     = make(map[string][]resolve.Endpoint, len(e.Instances))
		amiss     = make(map[string]bool)
	)
	for _, text := range slices.Compact(slices.Sorted(slices.Values(e.Instances))) {
		got, err := r.instance(ctx, text)
		if err != nil {
			amiss[text] = true
			if !r.amiss[text] {
				list = append(list, news{err: fmt.Errorf("kit: %q: instance %q: %w", r.target, text, err)})
			}
			got = r.known[text]
		}
		if len(got) > 0 {
			known[text] = got
			endpoints = append(endpoints, got...)
		}
	}
	r.amiss = amiss
	switch {
	case len(endpoints) > 0:
		list = append(list, news{update: resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}})
	case len(amiss) > 0:
		return list // nothing could be read, which is not to say that there is nothing
	default:
		list = append(list, news{update: resolve.Update{Kind: resolve.Empty}})
	}
	r.known = known
	return list
}

// instance reads one instance: more than one endpoint if a name has more than
// one address.
func (r *reader) instance(ctx context.Context, text string) ([]resolve.Endpoint, error) {
	if r.parse != nil {
		return r.parsed(text)
	}
	host, port, err := splitInstance(text)
	if err != nil {
		return nil, err
	}
	ips := make([]netip.Addr, 1)
	if ips[0], err = netip.ParseAddr(host); err != nil {
		if r.lookup == nil {
			return nil, errors.New("a host name, not an IP address: set kit.Lookup, or register addresses")
		}
		if ips, err = r.lookup(ctx, host); err != nil {
			return nil, fmt.Errorf("look up: %w", err)
		}
	}
	reachable := slices.DeleteFunc(slices.Clone(ips), unspecified)
	switch {
	case len(ips) == 0:
		return nil, fmt.Errorf("look up: %s has no address", host)
	case len(reachable) == 0:
		return nil, errUnspecified
	}
	list := make([]resolve.Endpoint, 0, len(reachable))
	for _, ip := range reachable {
		// A system resolver gives IPv4 addresses in their IPv6 form.
		list = append(list, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(ip.Unmap(), port)}})
	}
	return list, nil
}

// parsed reads an instance as the option Parse says.
func (r *reader) parsed(text string) ([]resolve.Endpoint, error) {
	e, err := r.parse(text)
	switch {
	case err != nil:
	case !e.Addr.IsValid() || e.Addr.Port() == 0:
		err = fmt.Errorf("parsed as %v, which cannot be connected to", e.Addr)
	case unspecified(e.Addr.Addr()):
		err = fmt.Errorf("parsed as %v: %w", e.Addr, errUnspecified)
	}
	return []resolve.Endpoint{e}, err
}

// errUnspecified is what is wrong with 0.0.0.0, which connects to this host.
var errUnspecified = errors.New("the unspecified address is for listening: register the address to connect to")

func unspecified(ip netip.Addr) bool { return ip.Unmap().WithZone("").IsUnspecified() }

// splitInstance reads "host:port", where an IPv6 address stands in brackets.
func splitInstance(text string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, fmt.Errorf("not host:port: %w", err)
	}
	n, err := strconv.ParseUint(service, 10, 16)
	switch {
	case host == "":
		return "", 0, errors.New("no host: write host:port")
	case err != nil || n == 0:
		return "", 0, fmt.Errorf("port %q is not a number from 1 to 65535", service)
	}
	return host, uint16(n), nil
}
