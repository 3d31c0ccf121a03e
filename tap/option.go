package tap

import (
	"context"
	"maps"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Option configures a [Layer] or [Connections].
type Option interface{ apply(p *place) }

// Direction tells whether a layer sees inbound or outbound requests. It is an [Option].
// The zero Direction means unknown.
type Direction int

// The directions, numbered as on the wire.
const (
	Inbound  Direction = 1 // requests to the service of this process
	Outbound Direction = 2 // requests of this process to others
)

// String returns "inbound", "outbound" or "unknown".
func (d Direction) String() string {
	switch d {
	case Inbound:
		return "inbound"
	case Outbound:
		return "outbound"
	}
	return "unknown"
}

func (d Direction) apply(p *place) { p.direction = d }

// WithDestination sets the address and labels of the endpoint to which a layer sends its requests.
// For an inbound layer, it is the address at which requests arrive. A zero addr means unknown.
func WithDestination(addr netip.AddrPort, labels map[string]string) Option {
	return optionFunc(func(p *place) {
		p.destination = normalizeAddr(addr)
		p.destinationLabels = cloned(labels)
	})
}

// WithSourceLabels sets labels for all clients of a layer, such as tls=loopback. They
// take precedence over those of the [Accessor].
func WithSourceLabels(labels map[string]string) Option {
	return optionFunc(func(p *place) { p.sourceLabels = cloned(labels) })
}

type optionFunc func(*place)

func (f optionFunc) apply(p *place) { f(p) }

// place has the values that all events of a layer share.
type place struct {
	direction         Direction
	destination       netip.AddrPort
	destinationLabels map[string]string // never nil
	sourceLabels      map[string]string // never nil
}

func newPlace(opts []Option) *place {
	p := &place{destinationLabels: map[string]string{}, sourceLabels: map[string]string{}}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(p)
		}
	}
	return p
}

// event returns an Event with the fields that all events of a request or connection share.
func (p *place) event(ctx context.Context, source netip.AddrPort) Event {
	e := Event{
		Direction: p.direction, Source: normalizeAddr(source), Destination: p.destination,
		SourceLabels: p.sourceLabels, DestinationLabels: p.destinationLabels,
	}
	if route := layer.RouteFromContext(ctx); route != nil {
		e.RouteLabels = orEmpty(route.Labels)
	}
	return e
}

func cloned(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return maps.Clone(labels)
}

// normalizeAddr makes addresses comparable. It converts an IPv4-mapped IPv6 address to
// IPv4, and removes the zone.
func normalizeAddr(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
