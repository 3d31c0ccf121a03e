// Package check verifies a cluster before and after you install the control plane, and the
// proxies in a namespace, in the manner of linkerd check. Every failed check comes with a hint.
// See [Run].
package check
