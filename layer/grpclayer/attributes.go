package grpclayer

import (
	"net/netip"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/resolve"
)

// The keys of the attributes by which this package's resolver passes values to its balancer.
type (
	idKey       struct{} // set on an address: its resolve.ID
	endpointKey struct{} // set on an endpoint: its *comparableEndpoint
	stateKey    struct{} // set on a resolver.State: the target's resolve.State
	settingsKey struct{} // set on a resolver.State: the resolver's *settings
)

// comparableEndpoint stores an endpoint among an address's attributes. gRPC compares these
// attributes with Equal.
type comparableEndpoint struct{ resolve.Endpoint }

// Equal reports whether o is a comparableEndpoint with an equal endpoint. Package
// attributes calls it.
func (k *comparableEndpoint) Equal(o any) bool {
	other, ok := o.(*comparableEndpoint)
	return ok && k.Endpoint.Equal(other.Endpoint)
}

// EndpointID returns an endpoint's ID from the attributes a of its address. [NewResolver]'s
// resolver adds the ID to the attributes; if another resolver made the address, EndpointID
// returns false. Transport credentials get the attributes from
// credentials.ClientHandshakeInfoFromContext.
func EndpointID(a *attributes.Attributes) (resolve.ID, bool) {
	id, ok := a.Value(idKey{}).(resolve.ID)
	return id, ok
}

// stateOf returns the state that the resolver passes to gRPC for the endpoints in set. gRPC forwards it
// to the balancer, together with its attributes, which carry the settings s.
func stateOf(set *resolve.Set, s *settings) resolver.State {
	endpoints := set.Endpoints()
	state := resolver.State{
		Addresses:  make([]resolver.Address, len(endpoints)),
		Endpoints:  make([]resolver.Endpoint, len(endpoints)),
		Attributes: attributes.New(stateKey{}, set.State()).WithValue(settingsKey{}, s),
	}
	// gRPC needs each endpoint twice: as an address for older balancers, and as an endpoint for ours.
	for i, e := range endpoints {
		addr := resolver.Address{
			Addr: e.Addr.String(), ServerName: e.ServerName, Attributes: attributes.New(idKey{}, e.ID),
		}
		state.Addresses[i] = addr
		state.Endpoints[i] = resolver.Endpoint{
			Addresses: []resolver.Address{addr}, Attributes: attributes.New(endpointKey{}, &comparableEndpoint{e}),
		}
	}
	return state
}

// addressed is an endpoint, together with its address in gRPC.
type addressed struct {
	resolve.Endpoint
	addr resolver.Address
}

// endpointsOf returns the endpoints in s, one for each address. A resolver from elsewhere may
// have made s.
func endpointsOf(s resolver.State) (found []addressed) {
	for _, e := range s.Endpoints {
		// Made by this package's resolver.
		if k, ok := e.Attributes.Value(endpointKey{}).(*comparableEndpoint); ok && len(e.Addresses) == 1 {
			found = append(found, addressed{k.Endpoint, e.Addresses[0]})
			continue
		}
		// From another resolver, which only knows addresses and names.
		for _, a := range e.Addresses {
			id := resolve.ID{Addr: addrOf(a.Addr), ServerName: a.ServerName}
			found = append(found, addressed{resolve.Endpoint{ID: id}, a})
		}
	}
	return found
}

// addrOf returns the address in text. If text is a socket's path, or a name for the dialer, addrOf
// returns the unspecified address with text as its zone, which identifies the endpoint: [::%bufnet]:0.
// gRPC dials text itself.
func addrOf(text string) netip.AddrPort {
	if addr, err := netip.ParseAddrPort(text); err == nil {
		return addr
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified().WithZone(text), 0)
}

// targetState returns the resolve.State that this package's resolver stored in s. If another
// resolver made s, which contains n endpoints, it returns StateEmpty if n is 0, and otherwise
// StateExists.
func targetState(s resolver.State, n int) resolve.State {
	if state, ok := s.Attributes.Value(stateKey{}).(resolve.State); ok {
		return state
	}
	if n == 0 {
		return resolve.StateEmpty
	}
	return resolve.StateExists
}
