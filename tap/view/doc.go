// Package view is a page that shows a process live: its requests counted, how
// long they take, its layers and endpoints, and each request as tap sees it.
//
//	mux.Handle("/view/", http.StripPrefix("/view", view.New(view.Config{Registry: reg})))
//
//	             ┌ Top, Describe, once a second, for all pages together ─▶ live ─┐
//	tap.Registry ┤                                                               ├─▶ page
//	             └ Watch, joined into requests, five times a second ─────▶ tap ──┘
//
// The page is one document with its style and its scripts, all of them in the
// binary. It fetches nothing from elsewhere. While no page is open the process
// does nothing for it.
//
// # What a page costs
//
// The process counts, and the page shows: rows and latencies are summed up here
// once for all pages, the latter of at most 2000 requests a second, and at most
// 200 rows are sent. Of live requests each page looks at no more than 1000 a
// second, and shows no more than 125 of these, failures first. What was left out
// is said. A page that does not read is dropped. One that was hidden or away goes
// on, and says of requests that were open before that their end was not seen.
//
// # Who may look
//
// Requests hold what is not for everybody. By default a [Handler] answers
// clients of this machine only, see [Loopback], and never a page of another
// origin. Header fields come as the registry shows them, see [tap.WithRevealed].
package view
