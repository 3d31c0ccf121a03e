// Package kube configures the destination controller from the Services and policies in a
// Kubernetes cluster:
//
//	API server ─▶ informers ─▶ stores ──▶ cluster, a controller.Source ──▶ controller   watch.go
//	                  │          ▲          destinations: cluster.go, profile.go, route.go
//	                  │          │          inbound policies: inbound.go
//	                  ├──────────┼────────▶ Controller.Changed, with the affected objects
//	                  └──────────┴────────▶ status of routes, by the leader             status.go
//
// The informers keep only the fields that the controller uses (object.go), because memory grows
// with the cluster. After a change, the controller translates again only what open streams depend
// on.
package kube

import (
	"embed"
	"io/fs"
	"strings"
)

// RBAC grants the controller its rights, as YAML documents: a ClusterRole and a Role, bound to
// the service account linkerd-destination in the namespace linkerd.
//
//go:embed rbac.yaml
var RBAC string

// crds contains the CustomResourceDefinitions, one file for each kind.
//
//go:embed crds/*.yaml
var crds embed.FS

// CRDs returns CustomResourceDefinitions for the kinds that the controller reads, as YAML
// documents. They declare only the fields that the controller uses, so install them only in a
// cluster where linkerd and the Gateway API are not installed.
func CRDs() string {
	var all []string
	err := fs.WalkDir(crds, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			// Each file must end up in all once. A directory only continues the walk.
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
