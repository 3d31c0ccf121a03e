// Package kube makes the Services and policies of a Kubernetes cluster the configuration of
// the destination controller:
//
//	API server ─▶ informers ─▶ stores ──▶ cluster, a controller.Source ──▶ controller   watch.go
//	                  │          ▲          destinations: cluster.go, profile.go, route.go
//	                  │          │          inbound policies: inbound.go
//	                  ├──────────┼────────▶ Controller.Changed, with the affected objects
//	                  └──────────┴────────▶ status of routes, by the leader             status.go
//
// The informers keep only the parts of objects that the controller uses (object.go). After a
// change, only the affected names and ports that have open streams are translated again.
package kube

import (
	"embed"
	"io/fs"
	"strings"
)

// RBAC has the rights of the controller, as YAML documents: a ClusterRole and a Role with
// their bindings. The bindings are for the service account linkerd-destination in the
// namespace linkerd.
//
//go:embed rbac.yaml
var RBAC string

//go:embed crds/*.yaml
var crds embed.FS

// CRDs returns the CustomResourceDefinitions of the kinds that the controller reads, as
// YAML documents. The definitions have only the fields that the controller reads. Install
// them only in a cluster that does not have the definitions of the Gateway API and of
// linkerd.
func CRDs() string {
	var all []string
	err := fs.WalkDir(crds, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var text []byte
			text, err = crds.ReadFile(path)
			all = append(all, string(text))
		}
		return err
	})
	if err != nil {
		panic("kube: " + err.Error()) // the files are embedded
	}
	return strings.Join(all, "---\n")
}
