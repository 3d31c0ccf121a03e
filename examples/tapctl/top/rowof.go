package top

import (
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// rowOf is a row as a condition on requests.
type rowOf struct {
	row       *tappb.Row
	anySource bool // rows were added up
}

// What rows are called that are not of one path or one route: that of requests
// for which there was no row left, and of rows that were let go; that of requests
// without a route. And how long a name in a row is at most. See tap.Registry.Top.
const (
	otherRows    = "(other)"
	defaultRoute = "[DEFAULT]"
	maxName      = 256
)

// other reports whether the row is that of what has none of its own. It does not
// say what that is: any request may be of it.
func (r rowOf) other() bool { return r.row.GetPath() == otherRows || byRoute(r.row) == otherRows }

// onePath reports whether all requests of the row have one method and path.
func (r rowOf) onePath() bool {
	return r.row.GetPath() != "" && !r.other() && len(r.row.GetPath()) < maxName
}

// match is what of the row can be asked of a process, so that little else is
// sent, beside what is asked anyway; has looks at all of it.
func (r rowOf) match(base *pb.ObserveRequest_Match) *pb.ObserveRequest_Match {
	var all []*pb.ObserveRequest_Match
	if base.GetMatch() != nil {
		all = append(all, base)
	}
	if net, ok := host(r.row.GetDestination()); ok {
		all = append(all, match.Destination(net))
	}
	if net, ok := host(r.row.GetSource()); ok && !r.anySource {
		all = append(all, match.Source(net))
	}
	if m := r.row.GetMethod(); m != "" && len(m) < maxName {
		all = append(all, match.Method(m))
	}
	switch path := r.row.GetPath(); {
	case path == "", path == otherRows:
	case len(path) < maxName:
		all = append(all, match.Path(path))
	default:
		all = append(all, match.PathPrefix(path))
	}
	switch route := byRoute(r.row); {
	case route == "", route == defaultRoute, route == otherRows, len(route) >= maxName:
	default:
		all = append(all, match.RouteLabel("route", route))
	}
	return match.All(all...)
}

// host is the address that a row is named by, if it is one.
func host(name string) (netip.Prefix, bool) {
	addr, err := netip.ParseAddr(name)
	return netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), err == nil
}

// has reports whether the request of an event, from the process of this name,
// is one of the row.
func (r rowOf) has(from string, e tap.Event) bool {
	row := r.row
	if r.other() {
		return true
	}
	source := name(e.SourceLabels, e.Source, from, e.Direction == tap.Outbound)
	destination := name(e.DestinationLabels, e.Destination, from, e.Direction == tap.Inbound)
	switch {
	case int32(row.GetDirection()) != int32(e.Direction),
		!r.anySource && source != row.GetSource(),
		destination != row.GetDestination():
		return false
	case byRoute(row) != "":
		route := cut(e.RouteLabels["route"])
		return route == row.GetRoute() || route == "" && row.GetRoute() == defaultRoute
	}
	return cut(e.RequestInit.Method) == row.GetMethod() && cut(e.RequestInit.Path) == row.GetPath()
}

// name is what rows call an address; the process itself stands for its own.
func name(labels map[string]string, addr netip.AddrPort, from string, own bool) string {
	switch {
	case labels["pod"] != "":
		return cut(labels["pod"])
	case addr.IsValid():
		return addr.Addr().String()
	case own:
		return from
	}
	return ""
}

func cut(s string) string { return s[:min(len(s), maxName)] }

// title says what the row is of.
func (r rowOf) title() string {
	if r.other() {
		return "all requests, those of " + otherRows + " among them"
	}
	what := r.row.GetMethod() + " " + r.row.GetPath()
	if route := byRoute(r.row); route != "" {
		what = "route " + route
	}
	return text.Clean(what + "  " + arrow(r.row.GetSource()) + r.row.GetDestination())
}

func arrow(source string) string {
	if source == "" {
		return "→ "
	}
	return source + " → "
}
