package top

import (
	"net/netip"

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

// otherRows is the path or route of the row for all requests without another row. A process adds
// this row at its maximum number of rows (see tap.Registry.Top). defaultRoute is the route in the
// row of requests without a route. maxName is the maximum length in bytes of a text in a row.
const (
	otherRows    = "(other)"
	defaultRoute = "[DEFAULT]"
	maxName      = 256
)

// other reports whether r is the row "(other)", which a process adds when it has the
// maximum number of rows. This row can count any request that does not have another row.
func (r rowOf) other() bool { return r.row.GetPath() == otherRows || byRoute(r.row) == otherRows }

// onePath reports whether all requests of the row have the same method and path.
func (r rowOf) onePath() bool {
	return r.row.GetPath() != "" && !r.other() && len(r.row.GetPath()) < maxName
}

// match returns a condition for the requests of the row that also match base. The condition leaves
// out the parts of the row that a process cannot check. Therefore a process may send requests of
// other rows too, which [rowOf.has] removes.
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

// host returns a network that contains only the IP address in the argument name. ok is false if
// name is not an IP address but the name of a pod.
func host(name string) (netip.Prefix, bool) {
	addr, err := netip.ParseAddr(name)
	return netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), err == nil
}

// has reports whether the row counts the request of e. The event e must have a RequestInit.
// The argument from is the name of the process that sent e.
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

// name returns the name that a row has for a client or endpoint: the value of its label pod, or
// else its address. If both are missing, the result is the argument from if own is true, and ""
// otherwise. from is the name of the watched process. own reports whether the client or endpoint is
// this process.
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

// title returns the title of the screen with the requests of the row.
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
