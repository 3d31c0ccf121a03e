package tap

import (
	"context"
	"maps"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Option configures a layer that [Layer] or [Connections] returns.
type Option interface{ apply(p *place) }

// Direction specifies whether a layer's requests are inbound or outbound. It is an [Option]. The
// zero Direction means unknown.
type Direction int

// The directions have the same numbers as in linkerd's tap API.
const (
	Inbound  Direction = 1 // requests to the service of this process
	Outbound Direction = 2 // requests of this process to others
)

// String returns the name of d for display: "inbound" or "outbound", or "unknown" for any other value.
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

// WithDestination sets the address and labels of the endpoint to which a layer sends its
// requests. For an inbound layer, addr is the address at which requests arrive. A zero addr
// means unknown.
func WithDestination(addr netip.AddrPort, labels map[string]string) Option {
	return optionFunc(func(p *place) {
		p.destination = normalizeAddr(addr)
		p.destinationLabels = cloned(labels)
	})
}

// WithSourceLabels sets labels that all of a layer's clients share, such as tls=loopback. They
// take precedence over the [Accessor]'s.
func WithSourceLabels(labels map[string]string) Option {
	return optionFunc(func(p *place) { p.sourceLabels = cloned(labels) })
}

// optionFunc makes a function an Option.
type optionFunc func(*place)

func (f optionFunc) apply(p *place) { f(p) }

// place is where a layer observes requests: it holds the values that are the same in all of the
// layer's events.
type place struct {
	direction         Direction
	destination       netip.AddrPort
	destinationLabels map[string]string // never nil
	sourceLabels      map[string]string // never nil
	routeBelow        bool              // a Layer shows requests when they get their route
}

// newPlace returns the place that opts describe. Options that are nil are ignored.
func newPlace(opts []Option) *place {
	p := &place{destinationLabels: map[string]string{}, sourceLabels: map[string]string{}}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(p)
		}
	}
	return p
}

// fill sets what is the same in all events of a request or connection: the direction, addresses
// and labels.
func (p *place) fill(ctx context.Context, e *Event, source netip.AddrPort) {
	e.Direction, e.Source, e.Destination = p.direction, normalizeAddr(source), p.destination
	e.SourceLabels, e.DestinationLabels = p.sourceLabels, p.destinationLabels
	if route := layer.RouteFromContext(ctx); route != nil {
		e.RouteLabels = orEmpty(route.Labels)
	}
}

// cloned returns a copy of labels, so that the caller may change its map. It is never nil.
func cloned(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return maps.Clone(labels)
}

// normalizeAddr returns a in a form that can be compared with ==. It converts an
// IPv4-mapped IPv6 address to IPv4, and removes the zone.
func normalizeAddr(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
