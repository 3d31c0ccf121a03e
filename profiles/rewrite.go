package profiles

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/layer"
)

// Rewrite changes the host and the path of forwarded requests. Conditions read the original ones.
// Empty fields keep the request's.
type Rewrite struct {
	Host string // a host with an optional port

	// Path, OldPrefix and NewPrefix change the path as those of a [Redirect].
	Path                 string
	OldPrefix, NewPrefix string
}

// Validate returns the reason why a Router would leave the rewrite out of a route, or nil if the
// rewrite is valid.
func (r Rewrite) Validate() error {
	switch {
	case r == Rewrite{}:
		return errors.New("no host or path")
	case r.Host != "" && !authority.Valid(r.Host):
		return fmt.Errorf("host %q is not a host with an optional port", r.Host)
	}
	return validPaths(r.Path, r.OldPrefix, r.NewPrefix)
}

// edits reports whether the route changes the requests that it forwards.
func (r Route) edits() bool { return r.Rewrite != nil || !r.RequestHeader.Empty() }

// edited returns a copy of req to which Rewrite and RequestHeader were applied.
func (a *routeStack[Req, Rsp]) edited(req Req) Req {
	edit := a.protocol
	// Conditions and redirects have read the original request.
	if r := a.route.Rewrite; r != nil {
		if r.Host != "" {
			req = edit.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "Host", Value: r.Host}}})
		}
		if r.Path != "" || r.OldPrefix != "" {
			redirect := Redirect{Path: r.Path, OldPrefix: r.OldPrefix, NewPrefix: r.NewPrefix}
			// A redirect and a rewrite change paths by the same rules.
			l := redirect.apply(location{path: a.access.Path(req), query: a.access.Query(req)})
			req = edit.EditPath(req, l.path, l.query)
		}
	}
	return edit.EditRequest(req, a.route.RequestHeader)
}

// validResponse returns the reason why a Router would leave Respond out of a route, or nil.
func validResponse(r *layer.DirectResponse) error {
	switch {
	// Informational responses (1xx) do not answer a request.
	case r.Status < 200 || r.Status > 999:
		return fmt.Errorf("status %d is not from 200 to 999", r.Status)
	case r.GRPC > maxGRPC:
		return fmt.Errorf("gRPC status %d is not from 1 to %d", r.GRPC, maxGRPC)
	}
	if err := (layer.HeaderMutation{Set: r.Header}).Validate(); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

// respondService answers all requests with the Respond of a route.
type respondService[Req, Rsp any] struct {
	reject func(context.Context, Req) (Rsp, error) // called for a canceled request
	edit   layer.Editor[Req, Rsp]
	answer layer.DirectResponse
}

// Call answers req, unless its context has ended.
func (r *respondService[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		return r.reject(ctx, req)
	}
	return r.edit.NewResponse(req, r.answer), nil
}

// Ready returns nil, because no target is needed.
func (r *respondService[Req, Rsp]) Ready(context.Context) error { return nil }

func (r *respondService[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "respond", State: layer.State{{Key: "status", Value: r.answer.Status}}}
}
