// Package injector adds the proxy to the pods of Kubernetes workloads, and removes it.
//
// A pod gets an init container, which redirects its connections, and the proxy. The proxy is a
// native sidecar (an init container that keeps running) or an ordinary container:
//
//	native:   init containers: linkerd-init, linkerd-proxy, the pod's own; containers: the pod's own
//	ordinary: init containers: the pod's own, linkerd-init; containers: linkerd-proxy, the pod's own
//
// Names, annotations and variables are linkerd's, so that its tools recognize the pods. Objects
// are maps decoded from JSON, so that fields which this package does not know are preserved.
//
// [Config.Inject] injects one pod. [Config.Filter] converts a stream of YAML or JSON documents
// that contain any kind of workload.
package injector
