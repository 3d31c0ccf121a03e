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

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/layer"
)

// Redirect answers requests with another location. Empty fields keep the request's host, port, path
// and query. A request that is already at the location is forwarded, as in linkerd's proxy.
//
// The location is an absolute URI without its scheme's default port. If neither the request nor
// Host contains a valid host, the response's status is 400. A gRPC request gets the status
// NOT_FOUND with the location in its message, as in linkerd, because gRPC clients do not follow
// redirects.
type Redirect struct {
	Status int    // 301, 302, 303, 307 or 308; 0 means 302; 307 and 308 keep the method
	Scheme string // "http" or "https"
	Host   string // a DNS name or an IP address, without a port
	Port   uint16 // 0 keeps the port, or means the default port if Scheme is set

	// Path replaces the path. If Path contains a query, it replaces the request's. Without Path,
	// NewPrefix replaces OldPrefix at the start of the path. For example, with "/v1" as OldPrefix
	// and "/v2" as NewPrefix, "/v1/books" becomes "/v2/books", but "/v10" is kept. All three
	// fields are percent-encoded.
	Path                 string
	OldPrefix, NewPrefix string
}

// Validate returns the reason why a Router would leave the redirect out of a route, or nil
// if the redirect is valid. Without the redirect, the requests are forwarded.
func (r Redirect) Validate() error {
	switch {
	case r.Status != 0 && !slices.Contains([]int{301, 302, 303, 307, 308}, r.Status):
		return fmt.Errorf("status %d is not 301, 302, 303, 307 or 308", r.Status)
	case r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https":
		return fmt.Errorf("scheme %q is not http or https", r.Scheme)
	case r.Host != "" && !authority.IsDNSName(r.Host) && !isAddress(r.Host):
		return fmt.Errorf("host %q is not a DNS name or an IP address without a port", r.Host)
	case r.Scheme+r.Host+r.Path+r.OldPrefix+r.NewPrefix == "" && r.Port == 0:
		return errors.New("no scheme, host, port or path")
	}
	return validPaths(r.Path, r.OldPrefix, r.NewPrefix)
}

// validPaths returns an error if the fields of a Redirect or Rewrite for the path are invalid.
func validPaths(target, oldPrefix, newPrefix string) error {
	switch {
	case target != "" && oldPrefix+newPrefix != "":
		return errors.New("a path and a prefix exclude each other")
	case newPrefix != "" && oldPrefix == "":
		return fmt.Errorf("new prefix %q without an old one", newPrefix)
	}
	path, query, _ := strings.Cut(target, "?")
	// The query is checked apart, because '?' is allowed in it.
	for _, p := range []string{path, oldPrefix, newPrefix} {
		// A path that begins with the query would be empty.
		if p != "" && p[0] != '/' || path == "" && target != "" {
			return fmt.Errorf("path %q does not begin with /", p)
		}
		if escaped(p) != p {
			return fmt.Errorf("path %q has a character that must be written with %%", p)
		}
	}
	if query = strings.ReplaceAll(query, "?", ""); escaped(query) != query {
		return fmt.Errorf("query %q has a character that must be written with %%", query)
	}
	return nil
}

// isAddress reports whether s is an IP address without a zone.
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

// Call answers req with the redirect, or sends it if it is at the location already.
func (r *redirectService[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	answer, ok := r.answer(req)
	if !ok || ctx.Err() != nil { // the service below rejects canceled requests
		return r.Service.Call(ctx, req)
	}
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		explanation.Add(layer.Node{Name: "redirect", State: layer.State{
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
	source, ok := locationOf(r.access.Scheme(req), r.access.Authority(req), r.access.Path(req), r.access.Query(req))
	// Without a host, no absolute location can be made.
	if !ok && r.redirect.Host == "" {
		return layer.DirectResponse{
			Status: 400, GRPC: grpcInvalidArgument, Message: "redirect: the request has no valid host",
		}, true
	}
	target := r.redirect.apply(source)
	// A redirect to the same location would be endless.
	if ok && target.equal(source) {
		return layer.DirectResponse{}, false
	}
	uri := target.String()
	return layer.DirectResponse{
		Status: cmp.Or(r.redirect.Status, 302), GRPC: grpcNotFound, Message: "redirected to " + uri,
		Header: []layer.HeaderField{{Name: "Location", Value: uri}},
	}, true
}

// Next returns the service that gets the requests without a redirect.
func (r *redirectService[Req, Rsp]) Next() layer.Service[Req, Rsp] { return r.Service }

// Describe shows an example of a request, and the location to which that request is
// redirected.
func (r *redirectService[Req, Rsp]) Describe() layer.Node {
	source := location{scheme: "http", host: "host", path: strings.TrimSuffix(r.redirect.OldPrefix, "/") + "/path"}
	return layer.Node{Name: "redirect", State: layer.State{
		{Key: "status", Value: cmp.Or(r.redirect.Status, 302)},
		{Key: "from", Value: source.String()}, {Key: "to", Value: r.redirect.apply(source).String()},
	}}
}

// location is an absolute URI with the scheme http or https.
type location struct {
	scheme      string
	host        string // an IPv6 address without brackets
	port        uint16 // 0 means the default port of the scheme
	path, query string
}

// locationOf returns a request's URI as a location. It returns false if target, the authority, contains no
// valid host. Any scheme other than "https" counts as "http".
func locationOf(scheme, target, path, query string) (location, bool) {
	if scheme != "https" {
		scheme = "http"
	}
	host, port, ok := splitAuthority(target)
	return location{scheme, host, port, path, query}.normalized(), ok
}

// splitAuthority returns the host and the port in target, an authority. Without a port, the port is 0. It
// returns false if the host is neither a name nor an IP address.
func splitAuthority(target string) (host string, port uint16, ok bool) {
	host = target
	// Without a port, the target may still be an IPv6 address in brackets.
	if h, number, err := net.SplitHostPort(target); err == nil {
		n, err := strconv.ParseUint(number, 10, 16)
		if number != "" && err != nil {
			return "", 0, false
		}
		host, port = h, uint16(n)
	} else if strings.HasPrefix(target, "[") && strings.HasSuffix(target, "]") {
		host = target[1 : len(target)-1]
	}
	return host, port, authority.IsDNSName(host) || isAddress(host)
}

// apply returns the location to which r redirects requests at l.
func (r Redirect) apply(l location) location {
	if r.Scheme != "" {
		// Another scheme has another default port.
		l.scheme, l.port = r.Scheme, 0
	}
	l.port = cmp.Or(r.Port, l.port)
	l.host = cmp.Or(r.Host, l.host)
	if r.Path != "" {
		path, query, hasQuery := strings.Cut(r.Path, "?")
		l.path = path
		if hasQuery {
			l.query = query
		}
	} else if r.OldPrefix != "" {
		l.path = r.replacePrefix(l.path)
	}
	return l.normalized()
}

// replacePrefix returns path with NewPrefix in place of OldPrefix, or unchanged if it does not begin with that.
func (r Redirect) replacePrefix(path string) string {
	// A prefix with or without '/' at its end is the same.
	prefix := strings.TrimSuffix(r.OldPrefix, "/")
	// The prefix must end at the end of a segment.
	if rest, ok := strings.CutPrefix(escaped(path), prefix); !ok || rest != "" && rest[0] != '/' {
		return path
	}
	// As many segments as the prefix has are removed.
	remaining := path
	for range strings.Count(prefix, "/") { // path may have bytes that are percent-encoded in prefix
		remaining = remaining[1+strings.IndexByte(remaining[1:]+"/", '/'):]
	}
	if remaining == "" {
		return cmp.Or(r.NewPrefix, "/")
	}
	return strings.TrimSuffix(r.NewPrefix, "/") + remaining
}

// normalized returns l without the default port of its scheme.
func (l location) normalized() location {
	if l.scheme == "http" && l.port == 80 || l.scheme == "https" && l.port == 443 {
		l.port = 0
	}
	return l
}

// equal reports whether both are the same location. Case does not matter in hosts.
func (l location) equal(other location) bool {
	sameHost := strings.EqualFold(l.host, other.host)
	// The other fields are compared by ==, so the hosts are cleared.
	l.host, other.host = "", ""
	return sameHost && l == other
}

// String returns the URI. The path and the query keep the bytes that the client sent, except for those
// that could end the path, the URI or the header field, which are percent-encoded.
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
	b = appendEscaped(b, l.path, "?#")
	if l.query != "" {
		b = appendEscaped(append(b, '?'), l.query, "#")
	}
	return string(b)
}
