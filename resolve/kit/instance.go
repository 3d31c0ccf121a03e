package kit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

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

	target    string
	instances []string                      // of the last event that had no error
	known     map[string][]resolve.Endpoint // by instance, as they were last read
	amiss     map[string]bool               // the instances that could not be read then
	failures  int                           // readings in a row at which the same look-ups failed
	away      error                         // of the last event, if it had one
	again     <-chan time.Time              // when to read the instances again; nil for never
}

// event returns the news of an event.
func (r *reader) event(ctx context.Context, e sd.Event) []news {
	r.away = nil
	if e.Err != nil {
		r.away = fmt.Errorf("kit: %q: %w", r.target, e.Err)
		return []news{{err: r.away}}
	}
	r.instances = slices.Compact(slices.Sorted(slices.Values(e.Instances)))
	return r.read(ctx)
}

// retry reads the instances of the last event once more: a source that has
// nothing new to say does not speak again because a look-up failed here. To
// find what was known is no news, unless it follows an error. While the source is
// away, its error comes after an update once more: a look-up is no answer of it.
func (r *reader) retry(ctx context.Context) []news {
	before := r.known
	list := r.read(ctx)
	if len(list) == 1 && list[0].err == nil && maps.EqualFunc(before, r.known, sameEndpoints) {
		return nil
	}
	if r.away != nil && slices.ContainsFunc(list, func(n news) bool { return n.err == nil }) {
		list = append(list, news{err: r.away})
	}
	return list
}

func sameEndpoints(a, b []resolve.Endpoint) bool {
	return slices.EqualFunc(a, b, resolve.Endpoint.Equal)
}

// read returns the news of the instances: first what is wrong with them, but for
// what was wrong before. An error at every event would be a source that is never
// well.
func (r *reader) read(ctx context.Context) []news {
	var (
		list      []news
		endpoints []resolve.Endpoint
		known     = make(map[string][]resolve.Endpoint, len(r.instances))
		amiss     = make(map[string]bool)
		passes    bool
	)
	for _, text := range r.instances {
		got, err := r.instance(ctx, text)
		if err != nil {
			amiss[text] = true
			_, mayPass := errors.AsType[lookupError](err)
			passes = passes || mayPass
			if !r.amiss[text] {
				list = append(list, news{err: fmt.Errorf("kit: %q: instance %q: %w", r.target, text, err)})
				if mayPass {
					r.failures = 0
				}
			}
			got = r.known[text]
		}
		if len(got) > 0 {
			known[text] = got
			endpoints = append(endpoints, got...)
		}
	}
	r.amiss = amiss
	r.again = nil
	if passes {
		r.again = time.After(r.backoff.Delay(r.failures))
		r.failures++
	}
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
	ips, err := r.addresses(ctx, host)
	if err != nil {
		return nil, err
	}
	list := make([]resolve.Endpoint, 0, len(ips))
	for _, ip := range ips {
		list = append(list, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(ip, port)}})
	}
	return list, nil
}

// addresses returns what a host can be connected to by, at least one.
func (r *reader) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if unspecified(ip) {
			return nil, errUnspecified
		}
		return []netip.Addr{ip.Unmap()}, nil
	}
	if r.lookup == nil {
		return nil, errors.New("a host name, not an IP address: set kit.WithLookup, or register addresses")
	}
	ips, err := r.lookup(ctx, host)
	if err != nil {
		return nil, lookupError{fmt.Errorf("look up: %w", err)}
	}
	var reachable []netip.Addr
	for _, ip := range ips {
		if !unspecified(ip) {
			reachable = append(reachable, ip.Unmap()) // a system resolver gives IPv4 addresses in their IPv6 form
		}
	}
	switch {
	case len(ips) == 0:
		return nil, lookupError{fmt.Errorf("look up: %s has no address", host)}
	case len(reachable) == 0:
		return nil, lookupError{errUnspecified}
	}
	slices.SortFunc(reachable, netip.Addr.Compare) // DNS rotates them, which is no change
	return reachable, nil
}

// lookupError is what is wrong with a name, and may not be at the next look-up.
type lookupError struct{ error }

func (e lookupError) Unwrap() error { return e.error }

// parsed reads an instance as the option WithParse says.
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
