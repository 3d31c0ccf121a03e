package outbound

import (
	"cmp"
	"net/http"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// counted has what goes by the routes of r counted by the name that its profile
// gives to the target.
func (r *router) counted() profiles.Option[*http.Request, *http.Response] {
	return profiles.Join(
		profiles.WithOnUpdate[*http.Request, *http.Response](func(p *profiles.Profile) {
			r.counts.OnProfile(cmp.Or(canonicalOf(p, r.target), r.target), p)
		}),
		profiles.WithMetrics[*http.Request, *http.Response](r.counts.Measured),
		profiles.WithPerRoute(r.counts.PerRoute),
		profiles.WithDefaultRoute(r.counts.Unrouted))
}

// backends has what goes to the targets of r's profile counted.
func (r *router) backends(
	to layer.MakeService[string, *http.Request, *http.Response],
) layer.MakeService[string, *http.Request, *http.Response] {
	return func(authority string) httplayer.Service { return r.counts.Backend(authority, to(authority)) }
}
