package profiles

import "context"

// Dispatch says what to do with a connection to a destination, or with a
// request where nobody sees connections. It is for whoever serves them.
//
//	profile                                    To
//	Name, and Routes or Targets                ToRoutes     if opaque, Targets
//	Name                                       ToApex
//	Endpoint                                   ToEndpoint
//	Routes or Targets                          ToRoutes     if opaque, Targets
//	else                                       ToTarget
//
// This is the decision of linkerd's proxy, but for the last but one: without a
// name, linkerd does not look at routes.
type Dispatch struct {
	// Opaque forbids to look into the connection: its bytes are forwarded as
	// they are, also from a server that speaks first. There are no requests
	// then, and no routes. A split is drawn once for the connection.
	Opaque bool

	// To says where it goes, and Authority how that is called: the apex, which
	// is the profile's name at the port of the target; the address of the
	// endpoint; or the target as it was asked for.
	To        Destination
	Authority string
	Endpoint  *Endpoint // of ToEndpoint; not to be changed
}

// Destination is where connections and requests go.
type Destination uint8

// The kinds of Destination.
const (
	ToTarget   Destination = iota // to what was asked for, as if there were no profile
	ToApex                        // to Authority, over all of its endpoints
	ToRoutes                      // by a [Router]: routes and split, with Authority as the apex
	ToEndpoint                    // to Endpoint, without a balancer
)

// String returns the word for d.
func (d Destination) String() string {
	switch d {
	case ToTarget:
		return "target"
	case ToApex:
		return "apex"
	case ToRoutes:
		return "routes"
	case ToEndpoint:
		return "endpoint"
	}
	return "unknown"
}

// Dispatch says what to do with connections to target, which p is the profile
// of. A name and an endpoint that are not valid are none; see Validate.
func (p *Profile) Dispatch(target string) Dispatch {
	apex, err := p.apex(target)
	named := p.Name != "" && err == nil
	d := Dispatch{Opaque: p.OpaqueProtocol, Authority: apex}
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

// Dispatch says what to do with a connection to the Router's target by the
// profile in force. Like a Call it waits for the first one, see [WithInitialWait],
// and returns an error only if ctx ends before that.
//
// A Call goes where Dispatch says, [ToEndpoint] only with [WithForward]. Who serves
// connections has to know Opaque before the first byte is looked at.
func (r *Router[Req, Rsp]) Dispatch(ctx context.Context) (Dispatch, error) {
	if ctx.Err() != nil {
		return Dispatch{}, r.refuse(ctx, 0)
	}
	s, err := r.await(ctx, r.current.Load())
	if err != nil {
		return Dispatch{}, err
	}
	return s.profile.Dispatch(r.target), nil
}
