// Package learn makes service profiles of requests that were seen.
//
//	GET /books/1   200 ─┐
//	GET /books/22  200 ─┼─▶ tree of segments, one per authority ─▶ ServiceProfile
//	GET /books/new 404 ─┘     ids become one branch                 GET /books/new
//	                                                                GET /books/[^/]*
//
// A segment that looks like an id (a number, a UUID, a long word with digits in
// it) stands for all of its kind, and so do siblings when there are too many of
// them to be names. Memory is bounded by that, whatever the paths are.
package learn

import (
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
)

// Profiles learns. The zero value is ready; it is not safe for concurrent use.
type Profiles struct {
	hosts map[string]*host
	open  map[stream]request
}

// stream tells requests apart: each process counts for itself.
type stream struct {
	from string
	id   tap.StreamID
}

// request is a request that has not ended.
type request struct {
	authority, method, path string
	status                  int
}

// Bounds of the memory.
const (
	maxOpen  = 10_000
	maxHosts = 100
)

// Add takes one event that came from the process called from.
func (p *Profiles) Add(from string, e tap.Event) {
	if p.open == nil {
		p.hosts, p.open = map[string]*host{}, map[stream]request{}
	}
	id := stream{from, e.ID}
	switch {
	case e.RequestInit != nil:
		if len(p.open) < maxOpen {
			p.open[id] = request{authority: e.RequestInit.Authority, method: e.RequestInit.Method, path: e.RequestInit.Path}
		}
	case e.ResponseInit != nil:
		if r, ok := p.open[id]; ok {
			r.status = e.ResponseInit.Status
			p.open[id] = r
		}
	case e.ResponseEnd != nil:
		if r, ok := p.open[id]; ok {
			delete(p.open, id)
			p.end(r, e.ResponseEnd)
		}
	}
}

// end counts a request.
func (p *Profiles) end(r request, e *tap.ResponseEnd) {
	name, ok := serviceName(r.authority)
	if !ok || !isRoute(r, e) {
		return
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

// isRoute reports whether a request was for an existing resource with a printable
// path. Requests without a response, or with "not found", are not.
func isRoute(r request, e *tap.ResponseEnd) bool {
	switch said := r.method + r.authority + r.path; {
	case text.Clean(said) != said:
		return false
	case r.status == 0, r.status == 404, r.status == 405, r.method == "", !strings.HasPrefix(r.path, "/"):
		return false
	}
	return e.GRPCStatus == nil || *e.GRPCStatus != codes.Unimplemented
}

// serviceName returns the service name of an authority, or "" for an address.
func serviceName(authority string) (string, bool) {
	host := authority
	if at := strings.LastIndexByte(authority, ':'); at >= 0 {
		host = authority[:at]
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || strings.ContainsAny(host, "[]:") {
		return "", false
	}
	_, err := netip.ParseAddr(host)
	return host, err != nil
}

// failure is linkerd's list.
func failure(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.DeadlineExceeded, codes.PermissionDenied, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// sample is one request.
type sample struct {
	failed bool
	took   time.Duration
}
