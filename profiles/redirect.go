package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// Redirect answers requests with another location. Empty fields keep the host, port, path and query
// of the request. A request that is already at the location is forwarded, as in linkerd's proxy.
//
// The location is an absolute URI without the default port of its scheme. If neither the request
// nor Host has a valid host, the response has status 400. A gRPC request gets the status NOT_FOUND
// with the location in its message, as in linkerd, because gRPC clients do not follow redirects.
type Redirect struct {
	Status int    // 301, 302, 303, 307 or 308; 0 means 302; 307 and 308 keep the method
	Scheme string // "http" or "https"
	Host   string // a DNS name or an IP address, without a port
	Port   uint16 // 0 keeps the port, or means the default port if Scheme is set

	// Path replaces the path. If Path has a query, this query replaces that of the request.
	// Without Path, NewPrefix replaces OldPrefix at the start of the path. For example, with "/v1"
	// as OldPrefix and "/v2" as NewPrefix, "/v1/books" becomes "/v2/books", but "/v10" is kept.
	// The values of all three fields are percent-encoded.
	Path                 string
	OldPrefix, NewPrefix string
}

// Validate returns the reason why a Router would leave the redirect out of a route, or nil
// if the redirect is valid. Without the redirect, the requests are forwarded.
func (r Redirect) Validate() error { //nolint:gocyclo // a list of rules
	switch {
	case r.Status != 0 && !slices.Contains([]int{301, 302, 303, 307, 308}, r.Status):
		return fmt.Errorf("redirect: status %d is not 301, 302, 303, 307 or 308", r.Status)
	case r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https":
		return fmt.Errorf("redirect: scheme %q is not http or https", r.Scheme)
	case r.Host != "" && !isName(r.Host) && !isAddress(r.Host):
		return fmt.Errorf("redirect: host %q is not a DNS name or an IP address without a port", r.Host)
	case r.Scheme+r.Host+r.Path+r.OldPrefix+r.NewPrefix == "" && r.Port == 0:
		return errors.New("redirect: no scheme, host, port or path")
	case r.Path != "" && r.OldPrefix+r.NewPrefix != "":
		return errors.New("redirect: a path and a prefix exclude each other")
	case r.NewPrefix != "" && r.OldPrefix == "":
		return fmt.Errorf("redirect: new prefix %q without an old one", r.NewPrefix)
	}
	path, query, _ := strings.Cut(r.Path, "?")
	for _, p := range []string{path, r.OldPrefix, r.NewPrefix} {
		if p != "" && p[0] != '/' || path == "" && r.Path != "" {
			return fmt.Errorf("redirect: path %q does not begin with /", p)
		}
		if string(appendEscaped(nil, p, true)) != p {
			return fmt.Errorf("redirect: path %q has a character that must be written with %%", p)
		}
	}
	if string(appendEscaped(nil, query, false)) != query {
		return fmt.Errorf("redirect: query %q has a character that must be written with %%", query)
	}
	return nil
}

func isAddress(s string) bool {
	addr, err := netip.ParseAddr(s)
	return err == nil && addr.Zone() == ""
}

// redirectService answers requests as a Redirect specifies.
type redirectService[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // receives requests that are at the location
	access                  layer.Accessor[Req, Rsp]
	edit                    layer.Editor[Req, Rsp]
	redirect                Redirect
}

func (r *redirectService[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	answer, ok := r.answer(req)
	if !ok || ctx.Err() != nil { // the service below rejects canceled requests
		return r.Service.Call(ctx, req)
	}
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(layer.Node{Name: "redirect", State: layer.State{
			{Key: "status", Value: answer.Status}, {Key: "message", Value: answer.Message},
		}})
	}
	return r.edit.NewResponse(req, answer), nil
}

// The gRPC statuses with which a Redirect answers gRPC requests.
const (
	grpcInvalidArgument = 3
	grpcNotFound        = 5
)

// answer returns the response to req. It returns false if req is already at the location
// and must be forwarded.
func (r *redirectService[Req, Rsp]) answer(req Req) (layer.DirectResponse, bool) {
	from, known := locationOf(r.access.Scheme(req), r.access.Authority(req), r.access.Path(req), r.access.Query(req))
	if !known && r.redirect.Host == "" {
		return layer.DirectResponse{
			Status: 400, GRPC: grpcInvalidArgument, Message: "redirect: the request has no valid host",
		}, true
	}
	to := r.redirect.apply(from)
	if known && to.equal(from) {
		return layer.DirectResponse{}, false
	}
	uri := to.String()
	return layer.DirectResponse{
		Status: cmp.Or(r.redirect.Status, 302), GRPC: grpcNotFound, Message: "redirected to " + uri,
		Header: []layer.HeaderField{{Name: "Location", Value: uri}},
	}, true
}

func (r *redirectService[Req, Rsp]) Next() layer.Service[Req, Rsp] { return r.Service }

// Describe shows an example of a request, and the location to which that request is
// redirected.
func (r *redirectService[Req, Rsp]) Describe() layer.Node {
	from := location{scheme: "http", host: "host", path: strings.TrimSuffix(r.redirect.OldPrefix, "/") + "/path"}
	return layer.Node{Name: "redirect", State: layer.State{
		{Key: "status", Value: cmp.Or(r.redirect.Status, 302)},
		{Key: "from", Value: from.String()}, {Key: "to", Value: r.redirect.apply(from).String()},
	}}
}

// location is an absolute URI with the scheme http or https.
type location struct {
	scheme      string
	host        string // an IPv6 address without brackets
	port        uint16 // 0 means the default port of the scheme
	path, query string
}

// locationOf returns the URI of a request as a location. It returns false if the authority has no
// valid host. Any scheme other than "https" counts as "http".
func locationOf(scheme, authority, path, query string) (location, bool) {
	if scheme != "https" {
		scheme = "http"
	}
	host, port, ok := splitAuthority(authority)
	return location{scheme, host, port, path, query}.normalized(), ok
}

// splitAuthority returns the host and the port in authority. Without a port, the port is 0. It
// returns false if the host is neither a name nor an IP address.
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

func (r Redirect) apply(l location) location {
	if r.Scheme != "" {
		l.scheme, l.port = r.Scheme, 0
	}
	l.port = cmp.Or(r.Port, l.port)
	l.host = cmp.Or(r.Host, l.host)
	if r.Path != "" {
		path, query, has := strings.Cut(r.Path, "?")
		l.path = path
		if has {
			l.query = query
		}
	} else if r.OldPrefix != "" {
		l.path = r.replacePrefix(l.path)
	}
	return l.normalized()
}

func (r Redirect) replacePrefix(path string) string {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(r.OldPrefix, "/"))
	switch {
	case !ok || rest != "" && rest[0] != '/':
		return path
	case rest == "":
		return cmp.Or(r.NewPrefix, "/")
	}
	return strings.TrimSuffix(r.NewPrefix, "/") + rest
}

// normalized returns l without the default port of its scheme.
func (l location) normalized() location {
	if l.scheme == "http" && l.port == 80 || l.scheme == "https" && l.port == 443 {
		l.port = 0
	}
	return l
}

func (l location) equal(other location) bool {
	sameHost := strings.EqualFold(l.host, other.host)
	l.host, other.host = "", ""
	return sameHost && l == other
}

// String returns the URI. Invalid and ambiguous characters are percent-encoded.
func (l location) String() string {
	b := make([]byte, 0, len("https://[]:65535?")+len(l.host)+len(l.path)+len(l.query))
	b = append(append(b, l.scheme...), "://"...)
	if strings.Contains(l.host, ":") {
		b = append(append(append(b, '['), l.host...), ']')
	} else {
		b = append(b, l.host...)
	}
	if l.port != 0 {
		b = strconv.AppendUint(append(b, ':'), uint64(l.port), 10)
	}
	if !strings.HasPrefix(l.path, "/") { // for OPTIONS * and CONNECT
		l.path = "/"
	}
	b = appendEscaped(b, l.path, true)
	if l.query != "" {
		b = appendEscaped(append(b, '?'), l.query, false)
	}
	return string(b)
}

// appendEscaped appends s, a path or a query, to b. It percent-encodes the characters that
// must be encoded and are not encoded yet. path reports whether s is a path.
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

// isEscape reports whether s begins with a percent-encoded character.
func isEscape(s string) bool { return len(s) > 2 && isHex(s[1]) && isHex(s[2]) }

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }
