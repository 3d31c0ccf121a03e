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

// comparableEndpoint is an endpoint that gRPC can compare.
type comparableEndpoint struct{ resolve.Endpoint }

// Equal is called by package attributes.
func (k *comparableEndpoint) Equal(o any) bool {
	other, ok := o.(*comparableEndpoint)
	return ok && k.Endpoint.Equal(other.Endpoint)
}

// EndpointID returns the ID that our resolver set for an address. Transport credentials get the
// attributes from credentials.ClientHandshakeInfoFromContext.
func EndpointID(a *attributes.Attributes) (resolve.ID, bool) {
	id, ok := a.Value(idKey{}).(resolve.ID)
	return id, ok
}

// stateOf returns the state of gRPC for a set of endpoints.
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

// addressed is an endpoint with its address of gRPC.
type addressed struct {
	resolve.Endpoint
	addr resolver.Address
}

// endpointsOf returns the endpoints of a state of any resolver: each address is an
// endpoint. invalid are the addresses that are not an IP address and a port.
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

// targetState returns the state of the target, which our resolver sets.
func targetState(s resolver.State, n int) resolve.State {
	if state, ok := s.Attributes.Value(stateKey{}).(resolve.State); ok {
		return state
	}
	if n == 0 {
		return resolve.StateEmpty
	}
	return resolve.StateExists
}
