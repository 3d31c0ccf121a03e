// Package meters counts what a proxy does, by the names and labels of linkerd's
// proxy, and shows it to Prometheus.
//
//	endpoint, route, balancer, connection        scrape
//	       │ bind, until ctx ends                   │
//	       ▼                                        ▼
//	    series of a family  ──────────────────▶  Handler: text, gzip, "# EOF"
//
// Labels are bound when an owner begins: an endpoint, route, balancer or listener. A
// request then costs atomic additions. A series is shown while an owner or an open
// stream may write to it, and for Config.RetainIdle after that, so that a scrape sees
// its last value. A series that is bound again meanwhile continues.
//
// Labels that clients or the application choose are bounded: a thousand addresses that
// clients connect to, a thousand destinations and a thousand targets at a time. Further
// ones are counted together. Their dst, parent_* and backend_* are empty, and they have
// no target_*, dst_*, authority, server_id or names of routes.
//
// Series of one name may have different labels, because endpoints have the labels that
// their discovery provides. Only this package and its importers use Prometheus; layers
// write to go-kit's interfaces.
package meters
