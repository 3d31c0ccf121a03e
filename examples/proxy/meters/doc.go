// Package meters counts the requests and connections of a proxy, by the names and labels
// of linkerd's proxy, and serves the counts to Prometheus.
//
//	endpoint, route, balancer, connection        scrape
//	       │ handle                                 │ sweep, collect
//	       ▼                                        ▼
//	    series of a family  ──────────────────▶  Handler: text, gzip, "# EOF"
//
// Labels are bound by a handle when an endpoint, route, balancer or listener begins. A
// request then costs atomic operations. A series expires Config.RetainIdle after the first
// scrape that follows its last write, so that a scrape sees the last value. The next write
// starts a new series at 0. Gauges expire only at 0. The series of the process, identity,
// DNS, stacks and *_http_errors_total do not expire.
//
// Endpoints, and names that clients or the application choose, are limited: a thousand of
// each kind have series. Further names are counted together until there is a place for them. Their dst,
// parent_* and backend_* are empty, and they have no target_*, dst_*, authority, server_id,
// client_id or names of routes.
//
// Series of one name may have different labels, because endpoints have the labels that
// their discovery provides. Only this package and its importers use Prometheus; layers
// write to go-kit's interfaces.
package meters
