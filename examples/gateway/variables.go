package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// headerModifiers returns a layer that applies r's header modifiers, or nil if r has none.
func headerModifiers(r *config.Route) httplayer.Layer {
	request := newTemplate(&r.RequestHeaderModifier)
	// A redirect is made from the request as the client has sent it, and no service gets that request.
	if r.RequestRedirect != nil {
		request = template{}
	}
	response := newTemplate(&r.ResponseHeaderModifier)
	if request.Empty() && response.Empty() {
		return nil
	}
	return func(next httplayer.Service) httplayer.Service {
		return &modifierService{next, string(r.Name), request, response}
	}
}

// modifierService is the service of a route with header modifiers.
type modifierService struct {
	httplayer.Service

	route             string
	request, response template
}

// Call sends req with its header fields modified, and modifies those of the response.
func (s *modifierService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// v computes each variable at most once. Most modifiers contain none, and need no v.
	var v *variables
	if s.request.hasVariables() || s.response.hasVariables() {
		v = &variables{req: req, ctx: ctx, route: s.route}
	}
	// Both come before the edit, so that the response sees the variables of the original request.
	requestChange := s.request.mutation(v)
	responseChange := s.response.mutation(v)
	// The layer "forwarded" has made this request, and no layer above sends it twice. So it needs no copy.
	rsp, err := s.Service.Call(ctx, httplayer.HTTP{InPlace: true}.EditRequest(req, requestChange))
	if err == nil {
		rsp = httplayer.HTTP{}.EditResponse(rsp, responseChange)
	}
	return rsp, err
}

// template is a header modifier. If it contains variables, its values are split into parts: fixed texts, and
// functions that return a variable's value.
type template struct {
	layer.HeaderMutation // the changes, with the variables as they are in the file

	add, set []templateField // empty without variables
}

// templateField is a header field whose value is the concatenation of its parts' results.
type templateField struct {
	name  string
	parts []func(*variables) string
}

// newTemplate returns the template for m.
func newTemplate(m *config.HeaderModifier) template {
	t := template{HeaderMutation: m.Mutation()}
	if m.HasVariables() {
		t.add = templateFields(m.Add)
		t.set = templateFields(m.Set)
	}
	return t
}

// hasVariables reports whether any value contains a variable.
func (t *template) hasVariables() bool { return len(t.add)+len(t.set) > 0 }

// templateFields splits each header's value into its parts.
func templateFields(headers []config.Header) []templateField {
	fields := make([]templateField, 0, len(headers))
	for _, h := range headers {
		field := templateField{name: string(h.Name)}
		// Expand calls the first function for a fixed text, and the second one for a variable, in order.
		h.Value.Expand(func(text string) {
			field.parts = append(field.parts, func(*variables) string { return text })
		}, func(name string) {
			field.parts = append(field.parts, variable(name))
		})
		fields = append(fields, field)
	}
	return fields
}

// mutation returns the changes for one request. v may be nil if t has no variables.
func (t *template) mutation(v *variables) layer.HeaderMutation {
	if !t.hasVariables() {
		return t.HeaderMutation
	}
	return layer.HeaderMutation{Remove: t.Remove, Add: values(t.add, v), Set: values(t.set, v)}
}

// values returns the fields with all variables replaced by those of one request.
func values(fields []templateField, v *variables) []layer.HeaderField {
	all := make([]layer.HeaderField, 0, len(fields))
	for _, f := range fields {
		var b strings.Builder
		for _, expand := range f.parts {
			b.WriteString(expand(v))
		}
		all = append(all, layer.HeaderField{Name: f.name, Value: b.String()})
	}
	return all
}

// variables computes the values of variables for one request. A header modifier of the configuration may
// contain them, for example the client's address: see [config.RequestVariables].
type variables struct {
	req   *http.Request
	ctx   context.Context //nolint:containedctx // of one call
	route string
	id    string // "" until it is needed
}

// variable returns the function for one of [config.RequestVariables].
func variable(name string) func(*variables) string {
	a := accessor{}
	// The name was checked with the configuration, so the default is the last variable, "scheme".
	switch name {
	case "client_ip":
		return func(v *variables) string { return a.Source(v.req).Addr().String() }
	case "host":
		return func(v *variables) string { return hostname(v.req) }
	case "listener":
		return func(v *variables) string { name, _ := v.ctx.Value(listenerKey{}).(string); return name }
	case "method":
		return func(v *variables) string { return a.Method(v.req) }
	case "path":
		return func(v *variables) string { return a.Path(v.req) }
	case "request_id":
		return (*variables).requestID
	case "route":
		return func(v *variables) string { return v.route }
	default:
		return func(v *variables) string { return a.Scheme(v.req) }
	}
}

// hostname returns the request's host without its port.
func hostname(req *http.Request) string {
	host := accessor{}.Authority(req)
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// requestID returns the random ID of this request, which it makes on the first call.
func (v *variables) requestID() string {
	if v.id == "" {
		var id [16]byte
		_, _ = rand.Read(id[:]) // never fails
		v.id = hex.EncodeToString(id[:])
	}
	return v.id
}
