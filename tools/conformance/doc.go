// Package conformance runs the conformance tests of the Kubernetes Gateway API against
// examples/gateway:
//
//	bash .ci/conformance.sh
//
// The cluster is a kube-apiserver without controllers and nodes. The test does the work of
// the missing components: it runs the pods of Deployments as processes, writes
// EndpointSlices, and assigns an address to each Gateway. The report is
// examples/gateway/CONFORMANCE.md.
package conformance
