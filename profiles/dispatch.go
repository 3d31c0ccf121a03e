package profiles

import "context"

// Dispatch is the destination of a connection, for servers of connections.
//
//	profile                                    To
//	Name, and Routes or Targets                ToRoutes     if opaque, Targets
//	Name                                       ToApex
//	Endpoint                                   ToEndpoint
//	Routes or Targets                          ToRoutes     if opaque, Targets
//	else                                       ToTarget
//
// linkerd's proxy decides the same, but ignores the routes of profiles without a
// name.
type Dispatch struct {
	// Opaque turns protocol detection off: the bytes are forwarded unchanged, also
	// if the server sends first. A split is drawn once for the connection.
	Opaque bool

	// To is the destination. Authority is its name: the apex, the address of the
	// endpoint, or the target.
	To        Destination
	Authority string
	Endpoint  *Endpoint // for ToEndpoint; must not be changed
}

// Destination is a kind of destination of connections and requests.
type Destination uint8

// The kinds of Destination.
const (
	ToTarget   Destination = iota // the target, as without a profile
	ToApex                        // all endpoints of Authority
	ToRoutes                      // a [Router]: routes and split, with Authority as the apex
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

// Dispatch returns the destination of connections to target, whose profile is p. It
// ignores an invalid name or endpoint; see Validate.
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

// Dispatch returns the destination of a connection to the Router's target by the
// current profile. Like Call it waits for the first profile, see [WithInitialWait],
// and returns an error only if ctx ends before. A server calls it before it reads
// the first byte, because Opaque forbids protocol detection.
func (r *Router[Req, Rsp]) Dispatch(ctx context.Context) (Dispatch, error) {
	if ctx.Err() != nil {
		return Dispatch{}, r.reject(ctx, 0)
	}
	s, err := r.await(ctx, r.current.Load())
	if err != nil {
		return Dispatch{}, err
	}
	return s.profile.Dispatch(r.target), nil
}
