// Package meters counts what a proxy does, by the names and labels of linkerd's
// proxy, and shows it to Prometheus.
//
//	endpoint, route, balancer, connection        scrape
//	       │ bind, until ctx ends                   │
//	       ▼                                        ▼
//	    series of a family  ──────────────────▶  Handler: text, gzip, "# EOF"
//
// Labels are bound when something begins; a request then costs atomic
// additions. A series is shown for as long as anybody may write to it, and for
// Config.RetainIdle after that, so that a scrape sees its last value; one that
// is bound again meanwhile goes on from there. What anybody may connect to, or who
// connects, is a label of a thousand at a time: outbound, a thousand addresses that
// clients connected to, a thousand destinations that were asked for, and a thousand
// targets that serve. Whoever comes beyond them
// is counted as one with all such, until it is let go and comes again: their dst,
// parent_* and backend_* are empty, and they have no target_*, dst_*, authority or
// server_id, nor names of routes. Series of a family need
// not have the same labels, as an endpoint has those that its discovery gave it.
//
// Prometheus is named here and nowhere else: layers write to go-kit's
// interfaces.
package meters
