// Package meters counts a proxy's requests and connections, and exports the counts to Prometheus.
// Metrics and labels have the same names as in linkerd's proxy.
//
//	endpoint, route, balancer, connection        scrape
//	       │ handle                                 │ sweep, collect
//	       ▼                                        ▼
//	    series of a family  ──────────────────▶  Handler: text, gzip, "# EOF"
//
// Labels are resolved when an endpoint, route, balancer or listener is made, and kept in a handle.
// A request then only costs atomic operations.
//
// A series expires when it has not been written for Config.RetainIdle. The time begins at the first
// scrape after the last write, so that this scrape includes the last value. A later write starts a
// new series at 0. Gauges expire only at 0. The series about the process, the identity, DNS, stacks
// and *_http_errors_total never expire.
//
// # Limits of names
//
// Clients choose many names, so only a limited number gets series of their own: 200 outbound
// targets, 200 outbound endpoints, and a thousand of each other kind, such as clients or ports.
// Further names of the same kind share a series until the series of other names have expired. Its
// labels dst, parent_* and backend_* are empty, and it lacks target_*, dst_*, authority, server_id,
// client_id and rt_*. A further endpoint of one of the 200 targets only loses target_* and dst_pod.
//
// A target with one endpoint, one route and one kind of response adds 19 KB to a scrape, and each
// further endpoint 6 KB. A scrape never exceeds 5 MB, however many targets there are.
//
// Series of the same metric may have different label names, because endpoints have the labels that
// discovery provides. Other packages use go-kit's interfaces instead of Prometheus.
package meters
