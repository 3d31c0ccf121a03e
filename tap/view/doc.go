// Package view serves a web page that shows a process live: request counts and latencies, its
// layers and endpoints, and single requests as package tap shows them.
//
//	mux.Handle("/view/", http.StripPrefix("/view", view.New(view.Config{Registry: reg})))
//
//	             ┌ Top, Describe, once a second, for all pages together ─▶ live ─┐
//	tap.Registry ┤                                                               ├─▶ page
//	             └ Watch, joined into requests, five times a second ─────▶ tap ──┘
//
// The binary contains the page with its style and scripts. The page loads nothing from other
// servers. The process does no work for the page while it is not open in a browser.
//
// # Cost of a page
//
// Rows and latencies are counted once for all pages, for at most 200 rows and 2000 latencies a
// second. Each page inspects at most 1000 live requests a second and shows at most 125 of these,
// failures first. It follows at most 500 open requests. A new request replaces the oldest one, if
// that has been open for 10 s. The page shows how many were omitted. A page that does not read is
// disconnected. After an interruption, a page reconnects. It marks the requests that were open
// before as lost.
//
// # Access
//
// Requests contain private data. By default a [Handler] serves only clients on this machine
// ([Loopback]). It never serves data to a page from another origin. The registry withholds the
// values of secret header fields, see [tap.WithRevealed].
package view
