// Package admin serves the status, metrics and controls of a proxy to its operator.
//
//	path              method    response
//	/live             GET       200
//	/ready            GET       200, or 503 until the proxy is ready for the first time
//	/metrics          GET       metrics as Prometheus text; 503 during eight other scrapes
//	/proxy-log-level  GET, PUT  GET: 200 with the filter; PUT: 204, or 400 if the filter is invalid; this machine only
//	/env.json         GET       the environment without secrets; ?A&B for the variables A and B; all clients, as in linkerd's proxy
//	/shutdown         POST      drains and ends the proxy; this machine only
//	/stack            GET       the tree of layers with its state, as text or JSON; this machine only
//	/view/            GET       package tap/view's page; this machine only
//
// Other methods are rejected with 405, and other paths with 404. "This machine only" paths change
// the proxy or show its internal state, so clients on other machines are rejected with 403. In a
// pod, use kubectl port-forward or exec to reach them.
//
// Any web page can make a browser send requests to localhost. Therefore /proxy-log-level,
// /env.json, /shutdown and /stack reject requests from pages with another origin. They also require
// that the Host is localhost, an IP address or one of Config.Hosts, which prevents DNS rebinding.
//
// A response that the client has not read within 30 s is aborted, unless it belongs to the page.
package admin
