// Package injector adds the proxy to the pods of Kubernetes workloads, and removes it.
//
// A pod gets an init container, which redirects its connections, and the proxy. The proxy is
// a native sidecar (an init container that keeps running) or an ordinary container:
//
//	native:   init containers: linkerd-init, linkerd-proxy, those of the pod; containers of the pod
//	ordinary: init containers: those of the pod, linkerd-init; containers: linkerd-proxy, those of the pod
//
// Names, annotations and variables are those of linkerd, so that its tools recognize the
// pods. Objects are maps decoded from JSON, so that fields which this package does not know
// are preserved.
//
// [Config.Inject] injects one pod. [Config.Filter] converts a stream of YAML or JSON
// documents with workloads of all kinds.
package injector
