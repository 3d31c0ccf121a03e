// Package conformance runs the conformance tests of the Kubernetes Gateway API against
// examples/gateway:
//
//	bash .ci/conformance.sh
//
// A kube-apiserver without other components has the objects. The test takes the place of
// those that the tests need: it runs the pods of Deployments as processes, writes
// EndpointSlices, and assigns an address to each Gateway. The report is CONFORMANCE.md of
// examples/gateway.
package conformance
