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

// reader converts the events of an Instancer for one stream.
type reader struct {
	options

	target  string
	invalid map[string]bool // the instances of the last event that could not be parsed
}

// event returns the items that a stream must yield for an event with the given instances. Each
// invalid instance has an error, unless it was already invalid in the previous event. An update
// with the valid instances follows. If all instances are invalid, event returns only errors.
func (r *reader) event(instances []string) []item {
	var list []item
	var endpoints []resolve.Endpoint
	invalid := make(map[string]bool)
	for _, text := range slices.Compact(slices.Sorted(slices.Values(instances))) {
		endpoint, err := r.instance(text)
		switch {
		case err == nil:
			endpoints = append(endpoints, endpoint)
			continue
		case !r.invalid[text]:
			list = append(list, item{err: fmt.Errorf("kit: %q: instance %q: %w", r.target, text, err)})
		}
		invalid[text] = true
	}
	r.invalid = invalid
	switch {
	case len(endpoints) > 0:
		list = append(list, item{update: resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}})
	case len(invalid) == 0:
		list = append(list, item{update: resolve.Update{Kind: resolve.Empty}})
	}
	return list
}

// instance parses the text of one instance. It returns an error if the parsed address has no
// port, or is unspecified, such as 0.0.0.0.
func (r *reader) instance(text string) (resolve.Endpoint, error) {
	e, err := r.parse(text)
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

// parseAddress is the default function of WithParse. It parses an IP address with a port.
func parseAddress(text string) (resolve.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return resolve.Endpoint{}, errors.New("not an IP address with a port: register addresses, or set kit.WithParse")
	}
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}}, nil
}
