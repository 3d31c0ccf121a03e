// Package conformance runs the conformance tests of the Kubernetes Gateway API against
// examples/gateway:
//
//	bash .ci/conformance.sh
//
// The cluster is just a kube-apiserver, without controllers or nodes. The test stands in for
// them: it runs Deployments' pods as processes, writes EndpointSlices, and assigns an address to
// each Gateway. The report is examples/gateway/CONFORMANCE.md.
package conformance
