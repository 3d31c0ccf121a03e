package grpclayer

import (
	"net/netip"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/resolve"
)

type (
	idKey       struct{} // key of the resolve.ID of an address
	endpointKey struct{} // key of the *comparableEndpoint of an endpoint
	stateKey    struct{} // key of the resolve.State of a resolver.State
	settingsKey struct{} // key of the *settings of a resolver.State
)

// comparableEndpoint stores an endpoint in the attributes of an address. gRPC compares
// the attributes of addresses by the method Equal.
type comparableEndpoint struct{ resolve.Endpoint }

// Equal reports whether o is a comparableEndpoint with an equal endpoint. Package
// attributes calls it.
func (k *comparableEndpoint) Equal(o any) bool {
	other, ok := o.(*comparableEndpoint)
	return ok && k.Endpoint.Equal(other.Endpoint)
}

// EndpointID returns the ID of an endpoint from the attributes a of its address. The
// resolver of [NewResolver] adds the ID to the attributes. EndpointID returns false if
// another resolver made the address. Transport credentials get the attributes from
// credentials.ClientHandshakeInfoFromContext.
func EndpointID(a *attributes.Attributes) (resolve.ID, bool) {
	id, ok := a.Value(idKey{}).(resolve.ID)
	return id, ok
}

// stateOf returns the state that the resolver passes to gRPC for the endpoints in set.
// The attributes of the state pass the settings s to the balancer.
func stateOf(set *resolve.Set, s *settings) resolver.State {
	endpoints := set.Endpoints()
	state := resolver.State{
		Addresses:  make([]resolver.Address, len(endpoints)),
		Endpoints:  make([]resolver.Endpoint, len(endpoints)),
		Attributes: attributes.New(stateKey{}, set.State()).WithValue(settingsKey{}, s),
	}
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

// endpointsOf returns the endpoints in s, one for each address. Another resolver than that
// of this package may have made s. The result invalid lists the addresses that are not an
// IP address with a port.
func endpointsOf(s resolver.State) (found []addressed, invalid []string) {
	for _, e := range s.Endpoints {
		if k, ok := e.Attributes.Value(endpointKey{}).(*comparableEndpoint); ok && len(e.Addresses) == 1 {
			found = append(found, addressed{k.Endpoint, e.Addresses[0]})
			continue
		}
		for _, a := range e.Addresses {
			ap, err := netip.ParseAddrPort(a.Addr)
			if err != nil {
				invalid = append(invalid, a.Addr)
				continue
			}
			id := resolve.ID{Addr: ap, ServerName: a.ServerName}
			found = append(found, addressed{resolve.Endpoint{ID: id}, a})
		}
	}
	return found, invalid
}

// targetState returns the resolve.State that the resolver of this package stored in s. If another
// resolver made s, the result depends on n, the number of endpoints in s. It is StateEmpty if n is
// 0, and otherwise StateExists.
func targetState(s resolver.State, n int) resolve.State {
	if state, ok := s.Attributes.Value(stateKey{}).(resolve.State); ok {
		return state
	}
	if n == 0 {
		return resolve.StateEmpty
	}
	return resolve.StateExists
}
