// Package admin serves the status, metrics and controls of a proxy to its operator.
//
//	path              method    answer
//	/live             GET       200
//	/ready            GET       200, or 503 until the proxy is ready for the first time
//	/metrics          GET       Prometheus' text; 503 during eight other scrapes
//	/proxy-log-level  GET, PUT  200 with the filter; 204 when it is set, 400 if it is invalid; this machine only
//	/env.json         GET       the environment without secrets; ?A&B for the variables A and B; all clients, as in linkerd's proxy
//	/shutdown         POST      drains and ends the proxy; this machine only
//	/stack            GET       the tree of layers with its state, as text or JSON; this machine only
//	/view/            GET       the page of package tap/view; this machine only
//
// Other methods get 405 and other paths 404. Paths for this machine only get 403 from
// other machines. They change the proxy, or show more of it than linkerd's proxy shows. In
// a pod, use kubectl port-forward or exec.
//
// Paths with restricted data reject browser pages of other origins. The host must be
// localhost, an address or one of Config.Hosts, which prevents DNS rebinding.
//
// A response that its client has not read within 30 s is aborted, except those of the page.
package admin
