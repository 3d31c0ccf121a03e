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
	return profiles.Options(
		profiles.OnProfile[*http.Request, *http.Response](func(p *profiles.Profile) {
			r.counts.OnProfile(cmp.Or(canonicalOf(p, r.target), r.target), p)
		}),
		profiles.Measured[*http.Request, *http.Response](r.counts.Measured),
		profiles.PerRoute(r.counts.PerRoute),
		profiles.Unrouted(r.counts.Unrouted))
}

// backends has what goes to the targets of r's profile counted.
func (r *router) backends(to layer.Make[string, *http.Request, *http.Response]) layer.Make[string, *http.Request, *http.Response] {
	return func(authority string) httplayer.Service { return r.counts.Backend(authority, to(authority)) }
}
