package profiles

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
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

// place is what a URI says of where to ask, and for what.
type place struct {
	scheme      string
	host        string // an IPv6 address without brackets
	port        uint16 // 0: the scheme's own
	path, query string
}

// placeOf returns the place that a request came to, and false if its host
// cannot be told from its authority. A scheme that a client made up is as good
// as none, which is http.
func placeOf(scheme, authority, path, query string) (place, bool) {
	if scheme != "https" {
		scheme = "http"
	}
	p := place{scheme: scheme, path: path, query: query}
	host, port, ok := splitAuthority(authority)
	p.host, p.port = host, port
	return p.plain(), ok
}

// splitAuthority parts a host from its port, which need not be there. A host
// is a name or an address, and nothing that would be read as something else in
// a Location.
func splitAuthority(authority string) (host string, port uint16, ok bool) {
	host = authority
	if h, number, err := net.SplitHostPort(authority); err == nil {
		n, err := strconv.ParseUint(number, 10, 16)
		if number != "" && err != nil {
			return "", 0, false
		}
		host, port = h, uint16(n)
	} else if strings.HasPrefix(authority, "[") && strings.HasSuffix(authority, "]") {
		host = authority[1 : len(authority)-1]
	}
	return host, port, isName(host) || isAddress(host)
}

// to is the place where the redirect sends requests that come to p.
func (r Redirect) to(p place) place {
	if r.Scheme != "" {
		p.scheme, p.port = r.Scheme, 0
	}
	if r.Port != 0 {
		p.port = r.Port
	}
	if r.Host != "" {
		p.host = r.Host
	}
	switch {
	case r.Path != "":
		path, query, has := strings.Cut(r.Path, "?")
		p.path = path
		if has {
			p.query = query
		}
	case r.OldPrefix != "":
		p.path = r.prefixed(p.path)
	}
	return p.plain()
}

// prefixed is path with the other prefix, if it has the old one.
func (r Redirect) prefixed(path string) string {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(r.OldPrefix, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return path
	}
	if rest == "" {
		if r.NewPrefix == "" {
			return "/"
		}
		return r.NewPrefix
	}
	return strings.TrimSuffix(r.NewPrefix, "/") + rest
}

// plain is p without a port that need not be said.
func (p place) plain() place {
	if p.scheme == "http" && p.port == 80 || p.scheme == "https" && p.port == 443 {
		p.port = 0
	}
	return p
}

// is reports whether two places are the same.
func (p place) is(other place) bool {
	sameHost := strings.EqualFold(p.host, other.host)
	p.host, other.host = "", ""
	return sameHost && p == other
}

// String is the URI. Characters that have no place in one, or another meaning
// there than here, are escaped.
func (p place) String() string {
	b := make([]byte, 0, len("https://[]:65535?")+len(p.host)+len(p.path)+len(p.query))
	b = append(append(b, p.scheme...), "://"...)
	if addr, err := netip.ParseAddr(p.host); err == nil && addr.Is6() {
		b = append(append(append(b, '['), p.host...), ']')
	} else {
		b = append(b, p.host...)
	}
	if p.port != 0 {
		b = strconv.AppendUint(append(b, ':'), uint64(p.port), 10)
	}
	if !strings.HasPrefix(p.path, "/") { // OPTIONS * and CONNECT have none
		p.path = "/"
	}
	b = appendEscaped(b, p.path, true)
	if p.query != "" {
		b = appendEscaped(append(b, '?'), p.query, false)
	}
	return string(b)
}

// appendEscaped appends a path or a query that is escaped already, with % where
// there should have been one.
func appendEscaped(b []byte, s string, path bool) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte("\"#<>\\^`{|}", c) >= 0 || path && c == '?' || c == '%' && !isEscape(s[i:]) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// isEscape reports whether s begins with a character that is escaped.
func isEscape(s string) bool { return len(s) > 2 && isHex(s[1]) && isHex(s[2]) }

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= lower(c) && lower(c) <= 'f' }
