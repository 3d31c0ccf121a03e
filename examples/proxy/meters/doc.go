// Package meters counts the requests and connections of a proxy, and exports the counts to
// Prometheus. The names of metrics and labels are those of linkerd's proxy.
//
//	endpoint, route, balancer, connection        scrape
//	       │ handle                                 │ sweep, collect
//	       ▼                                        ▼
//	    series of a family  ──────────────────▶  Handler: text, gzip, "# EOF"
//
// A handle of a series is made when an endpoint, route, balancer or listener is made, and
// has the labels of the series. A request then costs atomic operations only.
//
// A series expires if it is not written for Config.RetainIdle. The time begins at the first
// scrape after the last write, so that this scrape includes the last value. A later write
// starts a new series at 0. A gauge expires only if it is 0. The series of the process,
// identity, DNS, stacks and *_http_errors_total never expire.
//
// # Limits of names
//
// The number of names with separate series is limited: 200 outbound targets, 200 outbound
// endpoints, and a thousand of each other kind of name, such as clients or ports. All
// further names of a kind share a series, until the series of other names have expired.
// The shared series has empty labels dst, parent_* and backend_*. It has no labels
// target_*, dst_*, authority, server_id, client_id and rt_*. A further endpoint of one of
// the 200 targets keeps all labels but target_* and dst_pod.
//
// A target with one endpoint, one route and one kind of response adds 19 KB to a scrape.
// Each further endpoint adds 6 KB. With any number of such targets, a scrape has at most
// 5 MB.
//
// Series of one metric may have different label names, because an endpoint has the labels
// that discovery provides. Other packages use go-kit's interfaces instead of Prometheus.
package meters
