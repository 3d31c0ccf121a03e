package profiles

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

var errNoEdit = errors.New("it takes a layer.Editor, and Standard was given none")

// acts is the route without what cannot be done for want of a [layer.Editor],
// and an error for each piece of that.
func (s *standard[Req, Rsp]) acts(r Route) (Route, []error) {
	if s.edit != nil {
		return r, nil
	}
	var problems []error
	without := func(what string, has bool) {
		if has {
			problems = append(problems, fmt.Errorf("%s: %w", what, errNoEdit))
		}
	}
	without("request header", !r.RequestHeader.Empty())
	without("response header", !r.ResponseHeader.Empty())
	without("redirect", r.Redirect != nil)
	without("mirrors", len(r.Mirrors) > 0)
	r.RequestHeader, r.ResponseHeader = layer.HeaderMutation{}, layer.HeaderMutation{}
	r.Redirect, r.Mirrors = nil, nil
	var faults []Fault
	for i, f := range r.Faults {
		without(fmt.Sprintf("fault %d", i), f.Status != 0)
		if f.Status == 0 {
			faults = append(faults, f)
		}
	}
	r.Faults = faults
	return r, problems
}

// changesRequests adds RequestHeader.
func (a *acting[Req, Rsp]) changesRequests(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.RequestHeader, a.standard.edit
	if c.Empty() {
		return st
	}
	return st.MapRequest(func(req Req) Req { return edit.EditRequest(req, c) })
}

// changesResponses adds ResponseHeader.
func (a *acting[Req, Rsp]) changesResponses(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.ResponseHeader, a.standard.edit
	if c.Empty() {
		return st
	}
	return st.MapResponse(func(rsp Rsp) Rsp { return edit.EditResponse(rsp, c) })
}

// redirects adds Redirect.
func (a *acting[Req, Rsp]) redirects(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if a.route.Redirect == nil {
		return st
	}
	return st.With("redirect", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &redirecting[Req, Rsp]{Service: next, access: a.access, edit: a.standard.edit, redirect: *a.route.Redirect}
	})
}

// redirecting answers requests with another place to ask.
type redirecting[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // for requests that are where they should be
	access                  layer.Accessor[Req, Rsp]
	edit                    layer.Editor[Req, Rsp]
	redirect                Redirect
}

func (r *redirecting[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	answer, ok := r.answer(req)
	if !ok || ctx.Err() != nil { // whose caller has gone is refused below
		return r.Service.Call(ctx, req)
	}
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(layer.Node{Name: "redirect", State: layer.State{
			{Key: "status", Value: answer.Status}, {Key: "says", Value: answer.Message},
		}})
	}
	return r.edit.NewResponse(req, answer), nil
}

// The gRPC statuses of answers that are made here.
const (
	grpcInvalidArgument = 3
	grpcNotFound        = 5
)

// answer returns false for a request that would be sent to where it came.
func (r *redirecting[Req, Rsp]) answer(req Req) (layer.DirectResponse, bool) {
	from, known := placeOf(r.access.Scheme(req), r.access.Authority(req), r.access.Path(req), r.access.Query(req))
	if !known && r.redirect.Host == "" {
		return layer.DirectResponse{
			Status: 400, GRPC: grpcInvalidArgument, Message: "to be redirected a request must say its host",
		}, true
	}
	to := r.redirect.to(from)
	if known && to.is(from) {
		return layer.DirectResponse{}, false
	}
	location := to.String()
	return layer.DirectResponse{
		Status: r.redirect.status(), GRPC: grpcNotFound, Message: "redirected to " + location,
		Header: []layer.HeaderField{{Name: "Location", Value: location}},
	}, true
}

func (r *redirecting[Req, Rsp]) Next() layer.Service[Req, Rsp] { return r.Service }

// Describe shows where one request is sent.
func (r *redirecting[Req, Rsp]) Describe() layer.Node {
	from := place{scheme: "http", host: "host", path: strings.TrimSuffix(r.redirect.OldPrefix, "/") + "/path"}
	return layer.Node{Name: "redirect", State: layer.State{
		{Key: "status", Value: r.redirect.status()},
		{Key: "from", Value: from.String()}, {Key: "to", Value: r.redirect.to(from).String()},
	}}
}
