package grpclayer

import (
	"net/netip"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/resolve"
)

type (
	idKey       struct{} // of an address: its resolve.ID
	endpointKey struct{} // of an endpoint: a *known
	stateKey    struct{} // of a resolver.State: the target's resolve.State
	settingsKey struct{} // of a resolver.State: the balancer's *settings
)

// known is an endpoint that gRPC can compare.
type known struct{ resolve.Endpoint }

// Equal is asked by package attributes.
func (k *known) Equal(o any) bool {
	other, ok := o.(*known)
	return ok && k.Endpoint.Equal(other.Endpoint)
}

// EndpointID returns the ID that our resolver gave an address, for transport
// credentials that depend on it: they find the attributes by
// credentials.ClientHandshakeInfoFromContext.
func EndpointID(a *attributes.Attributes) (resolve.ID, bool) {
	id, ok := a.Value(idKey{}).(resolve.ID)
	return id, ok
}

// stateOf translates what our resolver knows.
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
			Addresses: []resolver.Address{addr}, Attributes: attributes.New(endpointKey{}, &known{e}),
		}
	}
	return state
}

// place is where one endpoint is, as gRPC and as we know it.
type place struct {
	resolve.Endpoint
	addr resolver.Address
}

// placesOf translates the state of any resolver of gRPC: each address is an
// endpoint. Addresses that are not an IP address and a port are returned as
// strange.
func placesOf(s resolver.State) (places []place, strange []string) {
	for _, e := range s.Endpoints {
		if k, ok := e.Attributes.Value(endpointKey{}).(*known); ok && len(e.Addresses) == 1 {
			places = append(places, place{k.Endpoint, e.Addresses[0]})
			continue
		}
		for _, a := range e.Addresses {
			ap, err := netip.ParseAddrPort(a.Addr)
			if err != nil {
				strange = append(strange, a.Addr)
				continue
			}
			id := resolve.ID{Addr: ap, ServerName: a.ServerName}
			places = append(places, place{resolve.Endpoint{ID: id}, a})
		}
	}
	return places, strange
}

// targetState is what a state says of the target: our resolver says it itself.
func targetState(s resolver.State, n int) resolve.State {
	if state, ok := s.Attributes.Value(stateKey{}).(resolve.State); ok {
		return state
	}
	if n == 0 {
		return resolve.StateEmpty
	}
	return resolve.StateExists
}
