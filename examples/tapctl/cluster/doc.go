// Package cluster finds the proxies of Kubernetes resources, and merges their taps and metrics.
//
//	deploy/web -n emojivoto ── API server ──▶ Pods ──▶ Source: Watch, Top   tap port of each pod
//	                                           └─────▶ Stat                 /metrics of each pod
//
// A [Cluster] is a client of the API server, configured like kubectl. [Parse] parses resources as
// kubectl does. [Cluster.Watch] yields the running pods of resources, and yields them again after
// each change.
//
// A pod belongs to a Deployment, a CronJob or another workload by its owner references. It
// belongs to a Service by the Service's selector.
//
// A pod's proxy is the container linkerd-proxy. Its ports and its identity are read from the
// container's specification.
package cluster
