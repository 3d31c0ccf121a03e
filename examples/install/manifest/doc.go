// Package manifest renders the Kubernetes objects of the control plane: the controller, the
// certificate authority and the injector, with their rights, and the trust anchors. See
// [Options.Render].
package manifest
