package profiles

import (
	"context"

	"github.com/gotower/gotower/resolve"
)

// Dispatch specifies where a server of connections sends a connection. The first row of this table
// whose conditions on the profile hold determines To:
//
//	Endpoint is set, Name is empty                ToEndpoint
//	Targets is not empty                          ToRoutes
//	Routes is not empty, OpaqueProtocol is false  ToRoutes
//	Name is not empty                             ToApex
//	otherwise                                     ToTarget
//
// linkerd's proxy uses the same rules, but ignores the routes of profiles without a name.
type Dispatch struct {
	// Opaque turns protocol detection off: bytes are forwarded unchanged, and the server
	// may send first. A split selects one target for the whole connection.
	Opaque bool

	// To is the kind of destination. Authority names the destination: the Endpoint's address for
	// ToEndpoint, and otherwise the profile's apex, see [Profile].Name.
	To        Destination
	Authority string
	Endpoint  *resolve.Endpoint // for ToEndpoint; must not be changed
}

// Destination specifies where a connection or request goes: to its target, to the profile's apex
// (see [Profile].Name), to a [Router] or to an endpoint.
type Destination uint8

// The kinds of Destination.
const (
	ToTarget   Destination = iota // the target of the connection, as without a profile
	ToApex                        // all endpoints of Authority
	ToRoutes                      // a [Router], which applies the Routes and Targets
	ToEndpoint                    // Endpoint, without a balancer
)

// String returns the name of d: "target", "apex", "routes" or "endpoint".
func (d Destination) String() string {
	names := [...]string{"target", "apex", "routes", "endpoint"}
	if int(d) < len(names) {
		return names[d]
	}
	return "unknown"
}

// Dispatch returns where connections to target go, by the rules in the table at the type
// [Dispatch]. p must be target's profile. An invalid Name or Endpoint is ignored: see
// [Profile.Validate].
func (p *Profile) Dispatch(target string) Dispatch {
	apex, err := p.apex(target)
	named := p.Name != "" && err == nil
	d := Dispatch{Opaque: p.OpaqueProtocol, Authority: apex}
	// An opaque connection has no requests, so routes do not apply to it.
	switch routed := len(p.Targets) > 0 || len(p.Routes) > 0 && !d.Opaque; {
	case !named && p.Endpoint != nil && p.Endpoint.Validate() == nil:
		d.To, d.Endpoint, d.Authority = ToEndpoint, p.Endpoint, p.Endpoint.Addr.String()
	case routed:
		d.To = ToRoutes
	case named:
		d.To = ToApex
	}
	return d
}

// Dispatch returns the destination of a connection to the Router's target, according to the current
// profile. It waits for the first profile as Call does: see [Config.InitialWait]. It returns an error
// only if ctx ends during that wait. A server must call Dispatch before it reads the first byte,
// because an opaque connection is not read for protocol detection.
func (r *Router[Req, Rsp]) Dispatch(ctx context.Context) (Dispatch, error) {
	if ctx.Err() != nil {
		return Dispatch{}, r.reject(ctx, 0)
	}
	// Waits for the first profile, if there is none yet.
	s, err := r.await(ctx, r.current.Load())
	if err != nil {
		return Dispatch{}, err
	}
	return s.profile.Dispatch(r.target), nil
}
