// Package admin is what a proxy tells its operator, and lets be changed while
// it runs.
//
//	path              method    answer
//	/live             GET       200
//	/ready            GET       200, or 503 until the proxy is ready for the first time
//	/metrics          GET       Prometheus' text; 503 while eight others are read
//	/proxy-log-level  GET, PUT  200 with the filter; 204 when it is set, 400 for one that is wrong; this machine only
//	/env.json         GET       the environment, secrets left out; ?A&B for some of it; whoever reaches the port, as in linkerd's proxy
//	/shutdown         POST      the proxy drains and ends; this machine only
//	/stack            GET       the tree of layers with its state, as text or JSON; this machine only
//	/view/            GET       the page of package tap/view; this machine only
//
// A method that is not named is answered with 405, any other path with 404, and
// with 403 what is for this machine only: what changes the proxy, and what shows
// more of it than linkerd's proxy shows anybody, such as whom the application
// talks to, and why that fails. In a pod that is kubectl port-forward or exec. Where something could be learnt or
// done that is not for everybody, a page in somebody's browser must not be able
// to ask: the host must be localhost, an address or one of Config.Hosts, so that
// no name of elsewhere can be made to point here, and no other origin may ask.
//
// An answer that is not read within 30 s is broken off, but for those of the page.
package admin
