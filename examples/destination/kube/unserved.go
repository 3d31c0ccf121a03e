package kube

import (
	"context"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// unservedKinds returns the kinds that the API server offers in linkerd's groups, or as routes of
// the Gateway API, but that the controller does not read. The operator should know that such
// objects have no effect.
func unservedKinds(ctx context.Context, api rest.Interface) ([]string, error) {
	var kinds []string
	for _, group := range []string{gatewayGroup, policyGroup, profileGroup, workloadGroup, "multicluster.linkerd.io"} {
		var versions metav1.APIGroup
		err := api.Get().AbsPath("/apis/" + group).Do(ctx).Into(&versions)
		// The group is not installed in this cluster.
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// A group may have several versions, with different kinds.
		for _, version := range versions.Versions {
			var list metav1.APIResourceList
			if err := api.Get().AbsPath("/apis/" + version.GroupVersion).Do(ctx).Into(&list); err != nil {
				return nil, err
			}
			for _, r := range list.APIResources {
				kind := r.Kind + "." + group
				// Cases without a body skip the resource.
				switch {
				case strings.Contains(r.Name, "/"): // a subresource
				case group == gatewayGroup && !strings.HasSuffix(r.Kind, "Route"): // meant for gateways
				case slices.Contains(kinds, kind), isServed(group, r.Name):
				default:
					kinds = append(kinds, kind)
				}
			}
		}
	}
	return kinds, nil
}

// isServed reports whether the controller reads this resource.
func isServed(group, resource string) bool {
	for _, r := range resources {
		if r.Group == group && r.Resource == resource {
			return true
		}
	}
	return false
}
