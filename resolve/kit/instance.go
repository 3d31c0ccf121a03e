package kit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/resolve"
)

// item is an update or an error to yield.
type item struct {
	update resolve.Update
	err    error
}

// reader converts the events of an Instancer to items for one stream. It belongs to the stream's
// goroutine.
type reader struct {
	options

	target  string
	invalid map[string]bool    // the instances of the last event that could not be parsed
	fixed   []resolve.Endpoint // the instances of the last event with an address
	named   map[string]name    // the instances of the last event that must be looked up
	names   *names             // nil if no instance needs it
}

// event returns the items that a stream must yield for an event with the given instances. Each
// invalid instance yields an error, unless it was already invalid in the previous event. An update
// with the valid instances follows. If all instances are invalid, event returns only errors, and the
// last set stays. Names are looked up, and belong to the update once their addresses are known.
func (r *reader) event(instances []string) []item {
	var list []item
	var endpoints []resolve.Endpoint
	invalid := make(map[string]bool)
	named := make(map[string]name)
	// Sorted and each once, because an Instancer may send the same instances in another order.
	for _, text := range slices.Compact(slices.Sorted(slices.Values(instances))) {
		// The default parser reports a name as an error of the type nameError.
		endpoint, err := r.instance(text)
		if n, nameError := errors.AsType[nameError](err); nameError {
			named[text] = name(n)
			continue
		}
		switch {
		case err == nil:
			endpoints = append(endpoints, endpoint)
			continue
		// Only a new mistake is reported: r.invalid has the instances that were invalid in the last event.
		case !r.invalid[text]:
			list = append(list, item{err: fmt.Errorf("kit: %q: instance %q: %w", r.target, text, err)})
		}
		invalid[text] = true
	}
	r.invalid = invalid
	// All instances are unreadable. That is more likely a mistake in the source than a service without
	// instances.
	if len(endpoints)+len(named) == 0 && len(invalid) > 0 {
		return list
	}
	r.fixed, r.named = endpoints, named
	if r.names != nil {
		// Starts look-ups for new names and ends those of names that are gone.
		r.names.follow(named)
	}
	return append(list, r.current()...)
}

// current returns the items for the last event and its names' addresses. It returns no update while the first
// look-ups are in progress and no address is known.
func (r *reader) current() (list []item) {
	// Cloned, because the consumer owns the slice that is yielded.
	endpoints := slices.Clone(r.fixed)
	pending := len(r.named) > 0
	if r.names != nil {
		// Addresses that are known are yielded while others are still looked up.
		named, errs, waits := r.names.endpoints()
		for _, err := range errs {
			list = append(list, item{err: fmt.Errorf("kit: %q: %w", r.target, err)})
		}
		endpoints, pending = append(endpoints, named...), waits
	}
	switch {
	case len(endpoints) > 0:
		list = append(list, item{update: resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}})
	case !pending:
		list = append(list, item{update: resolve.Update{Kind: resolve.Empty}})
	}
	return list
}

// nameError is the error of an instance that is a name, not an address, and so must be looked up. It is
// an error because a function for WithParse can return nothing else.
type nameError name

// Error names what must be looked up.
func (n nameError) Error() string { return n.target + " must be looked up" }

// instance parses one instance's text. It returns an error if the parsed address lacks a port, or
// is unspecified, such as 0.0.0.0.
func (r *reader) instance(text string) (resolve.Endpoint, error) {
	e, err := r.parse(text)
	// A function for WithParse may return anything, so its result is checked.
	switch {
	case err != nil:
		return e, err
	case !e.Addr.IsValid() || e.Addr.Port() == 0:
		return e, fmt.Errorf("parsed as %v, which cannot be connected to", e.Addr)
	case e.Addr.Addr().Unmap().WithZone("").IsUnspecified():
		return e, fmt.Errorf("parsed as %v: the unspecified address is for listening: register the address to connect to", e.Addr)
	}
	return e, nil
}

// parseInstance is the default function of WithParse. It returns a nameError for a name.
func parseInstance(text string) (resolve.Endpoint, error) {
	e, err := parseAddress(text)
	if err == nil {
		return e, nil
	}
	n, err := parseName(text)
	if err != nil {
		return e, err
	}
	if addr, err := netip.ParseAddrPort(n.target); err == nil { // the URL has an address
		e.Addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
		e.ServerName, e.Labels = n.serverName, map[string]string{instanceLabel: text}
		return e, nil
	}
	return e, nameError(n)
}

// parseAddress parses an IP address with a port.
func parseAddress(text string) (resolve.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return resolve.Endpoint{}, errors.New("not an IP address with a port")
	}
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}}, nil
}
