// Package check verifies a cluster before and after the installation of the control plane,
// and the proxies of a namespace, in the manner of linkerd check. Every failed check has a
// hint. See [Run].
package check
