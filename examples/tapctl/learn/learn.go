// Package learn makes linkerd ServiceProfiles from observed requests.
//
//	GET /books/1   200 ─┐
//	GET /books/22  200 ─┼─▶ tree of segments, one per authority ─▶ ServiceProfile
//	GET /books/new 404 ─┘     ids become one branch                 GET /books/new
//	                                                                GET /books/[^/]*
//
// A segment that looks like an id becomes a wildcard. An id is a number, a UUID, or a long word
// with digits. If a segment has too many siblings to be a name, all siblings become one wildcard.
// This bounds the memory for the paths.
package learn

import (
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
)

// Profiles collects requests and writes ServiceProfiles of them. The zero value is ready to
// use. It is not safe for concurrent use.
type Profiles struct {
	hosts map[string]*host
	open  tap.Joiner[*request]
}

// request is a request that has started but not ended.
type request struct {
	authority, method, path string
	status                  int
}

// maxHosts limits the memory: how many services there may be.
const maxHosts = 100

// Add adds the event e. process is the name of the process that reported e.
func (p *Profiles) Add(process string, e tap.Event) {
	r, ok := p.open.Join(process, &e, func() (*request, bool) {
		init := e.RequestInit
		if init == nil { // of a connection
			return nil, false
		}
		return &request{authority: init.Authority, method: init.Method, path: init.Path}, true
	})
	switch {
	case !ok:
	case e.ResponseInit != nil:
		r.status = e.ResponseInit.Status
	case e.ResponseEnd != nil:
		p.end(*r, e.ResponseEnd)
	}
}

// end adds the request r, which ended with the event e, to the tree of its service. It ignores r
// if the authority contains no host name, if isRoute returns false, or if there are too many
// services.
func (p *Profiles) end(r request, e *tap.ResponseEnd) {
	name, ok := serviceName(r.authority)
	if !ok || !isRoute(r, e) {
		return
	}
	if p.hosts == nil {
		p.hosts = make(map[string]*host)
	}
	h := p.hosts[name]
	if h == nil {
		if len(p.hosts) >= maxHosts {
			return
		}
		h = &host{}
		p.hosts[name] = h
	}
	h.root.add(segments(r.path), e.GRPCStatus != nil, r.method, sample{
		failed: e.ResetCode != nil || r.status >= 500 || e.GRPCStatus != nil && failure(*e.GRPCStatus), took: e.SinceRequestInit,
	})
}

// isRoute reports whether a request belongs in a profile. Its method, authority and path must be
// printable. There must be a response other than "not found", "method not allowed" or
// UNIMPLEMENTED.
func isRoute(r request, e *tap.ResponseEnd) bool {
	// The concatenation is only used to check all three at once.
	switch line := r.method + r.authority + r.path; {
	case text.Clean(line) != line:
		return false
	case r.status == 0, r.status == 404, r.status == 405, r.method == "", !strings.HasPrefix(r.path, "/"):
		return false
	}
	return e.GRPCStatus == nil || *e.GRPCStatus != codes.Unimplemented
}

// serviceName returns the host name in authority in lower case, and true. It returns false if
// the host is an IP address or missing.
func serviceName(authority string) (string, bool) {
	host := authority
	// The last colon separates the port.
	if colon := strings.LastIndexByte(authority, ':'); colon >= 0 {
		host = authority[:colon]
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	// These characters only occur in IPv6 addresses.
	if host == "" || strings.ContainsAny(host, "[]:") {
		return "", false
	}
	_, err := netip.ParseAddr(host)
	return host, err != nil
}

// failure reports whether linkerd counts a gRPC response with the code c as a failure.
func failure(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.DeadlineExceeded, codes.PermissionDenied, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// sample is what a route counts about one request: whether it failed, and how long it took.
type sample struct {
	failed bool
	took   time.Duration
}
