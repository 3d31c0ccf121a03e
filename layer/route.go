package layer

import "context"

// Route is what a router tells the layers below it of its choice.
type Route struct {
	Name   string            // for people; may be empty
	Labels map[string]string // for metrics and tap; not to be changed
}

type routeKey struct{}

// WithRoute returns a context that carries r to the layers below.
func WithRoute(ctx context.Context, r *Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// RouteFromContext returns the innermost route that ctx carries, or nil.
func RouteFromContext(ctx context.Context) *Route {
	r, _ := ctx.Value(routeKey{}).(*Route)
	return r
}
