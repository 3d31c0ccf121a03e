package top

import (
	"net/netip"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// rowOf selects the requests that a row of the table counts.
type rowOf struct {
	row       *tappb.Row
	anySource bool // the row is a sum over sources
}

// otherRows stands in for the path or route in a row for all remaining requests, which a process
// adds when it cannot keep more rows (see tap.Registry.Top). defaultRoute is the route in the row
// for requests without one. maxName is how many bytes a text in a row may take up.
const (
	otherRows    = "(other)"
	defaultRoute = "[DEFAULT]"
	maxName      = 256
)

// other reports whether r is the row "(other)", which a process adds when it reaches the maximum
// number of rows. This row can count any request without another row.
func (r rowOf) other() bool { return r.row.GetPath() == otherRows || byRoute(r.row) == otherRows }

// onePath reports whether all requests in the row share their method and path.
func (r rowOf) onePath() bool {
	path := r.row.GetPath()
	return path != "" && !r.other() && len(path) < maxName && !isPattern(path)
}

// isPattern reports whether a row's path comes from an http.ServeMux pattern: it contains a wildcard
// or a host.
func isPattern(path string) bool {
	return path != "" && (path[0] != '/' || strings.Contains(path, "{"))
}

// match returns a condition for the row's requests that also match base. It leaves out what a
// process cannot check, so a process may send other rows' requests too, which [rowOf.has]
// removes.
func (r rowOf) match(base *pb.ObserveRequest_Match) *pb.ObserveRequest_Match {
	var all []*pb.ObserveRequest_Match
	if base.GetMatch() != nil {
		all = append(all, base)
	}
	// A row names addresses or pods. Only an address can be part of the condition.
	if addr, err := netip.ParseAddrPort(r.row.GetDestination()); err == nil {
		all = append(all, match.Destination(network(addr.Addr())), match.DestinationPorts(addr.Port(), addr.Port()))
	}
	if addr, err := netip.ParseAddr(r.row.GetSource()); err == nil && !r.anySource {
		all = append(all, match.Source(network(addr)))
	}
	// Longer texts have been cut in the row, so they cannot be compared exactly.
	if m := r.row.GetMethod(); m != "" && len(m) < maxName {
		all = append(all, match.Method(m))
	}
	// Cases without a body add no condition.
	switch path := r.row.GetPath(); {
	case path == "", path == otherRows:
	case isPattern(path):
		// The beginning up to the first wildcard is the same for all requests. A pattern with a host has none.
		if start, _, _ := strings.Cut(path, "{"); path[0] == '/' {
			all = append(all, match.PathPrefix(start))
		}
	case len(path) < maxName:
		all = append(all, match.Path(path))
	default:
		all = append(all, match.PathPrefix(path))
	}
	// A route that was not reported by a label cannot be a condition.
	switch route := byRoute(r.row); {
	case route == "", route == defaultRoute, route == otherRows, len(route) >= maxName, strings.Contains(route, "/"):
	default:
		all = append(all, match.RouteLabel("route", route))
	}
	return match.All(all...)
}

// network returns the network that contains only addr.
func network(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr.WithZone(""), addr.BitLen()) }

// has reports whether the row counts e's request. e must have a RequestInit. process is the name
// of the process that sent e.
func (r rowOf) has(process string, e tap.Event) bool {
	row := r.row
	if r.other() {
		return true
	}
	// The process itself is the source of outbound requests, and the destination of inbound ones.
	source := name(e.SourceLabels, e.Source.Addr(), process, e.Direction == tap.Outbound)
	destination := name(e.DestinationLabels, e.Destination, process, e.Direction == tap.Inbound)
	// The order matters: first what every row has, then routes, and then method and path.
	switch {
	case int32(row.GetDirection()) != int32(e.Direction),
		!r.anySource && source != row.GetSource(),
		destination != row.GetDestination():
		return false
	case byRoute(row) != "":
		route := cut(e.RouteLabels["route"])
		want := row.GetRoute()
		// A request without a route label may still match a route that is a pattern of ServeMux.
		return route == want || route == "" && (want == defaultRoute || routes(want, e.RequestInit))
	}
	return cut(e.RequestInit.Method) == row.GetMethod() &&
		(cut(e.RequestInit.Path) == row.GetPath() || isPattern(row.GetPath()) && routes(row.GetPath(), e.RequestInit))
}

// routes reports whether an http.ServeMux routes the request by pattern. A host in the pattern matches any
// authority.
func routes(pattern string, init *tap.RequestInit) bool {
	// The pattern's path begins at the first slash. A method and a host may precede it.
	slash := strings.IndexByte(pattern, '/')
	if slash < 0 {
		return false
	}
	// A pattern without a method has no space.
	if method, _, ok := strings.Cut(pattern[:slash], " "); ok && method != init.Method {
		return false
	}
	want := strings.Split(pattern[slash:], "/")
	got := strings.Split(init.Path, "/")
	for i, segment := range want {
		// A final slash or {name...} matches all remaining segments.
		rest := segment == "" && i == len(want)-1 && i > 0 || strings.HasSuffix(segment, "...}")
		switch {
		case rest:
			return len(got) > i
		// {$} matches only a path that ends with this slash.
		case segment == "{$}":
			return len(got) == i+1 && got[i] == ""
		// The segments differ. A wildcard such as {name} would allow that, but only for a segment that is not empty.
		case i >= len(got), segment != got[i] && (got[i] == "" || !strings.HasPrefix(segment, "{")):
			return false
		}
	}
	return len(got) == len(want)
}

// name returns how a row names a client or endpoint: by its label pod, or else by its address. If
// both are missing, the name is process if isProcess says that the client or endpoint is the
// watched process, and otherwise "".
func name(labels map[string]string, addr address, process string, isProcess bool) string {
	switch {
	case labels["pod"] != "":
		return cut(labels["pod"])
	case addr.IsValid():
		return addr.String()
	case isProcess:
		return process
	}
	return ""
}

// address is a netip.Addr or a netip.AddrPort.
type address interface {
	IsValid() bool
	String() string
}

// cut shortens s as processes shorten the texts in rows.
func cut(s string) string { return s[:min(len(s), maxName)] }

// title returns the title of the screen with the row's requests.
func (r rowOf) title() string {
	if r.other() {
		return "all requests, those of " + otherRows + " among them"
	}
	title := r.row.GetMethod() + " " + r.row.GetPath()
	if route := byRoute(r.row); route != "" {
		title = "route " + route
	}
	return text.Clean(title + "  " + arrow(r.row.GetSource()) + r.row.GetDestination())
}

// arrow returns the beginning of "source → destination", where the source may be missing.
func arrow(source string) string {
	if source == "" {
		return "→ "
	}
	return source + " → "
}
