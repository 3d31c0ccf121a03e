package k8s

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// String returns the resource's name, as in the field resources of a Role.
func (k kind) String() string {
	if k == services {
		return "services"
	}
	return "endpointslices"
}

// group returns the resource's API group, as in the field apiGroups of a Role. It is "" for the core
// group, to which Services belong.
func (k kind) group() string {
	if k == services {
		return ""
	}
	return "discovery.k8s.io"
}

// failure returns the error to yield after err, a failure to list or watch objects of the given
// Service. k is their kind, and verb is "list" or "watch". failure adds advice for errors with a
// known cause.
func failure(service object, k kind, verb string, err error) error {
	if advice := advice(service, k, err); advice != "" {
		return fmt.Errorf("k8s: %v: %s %v: %s: %w", service, verb, k, advice, err)
	}
	return fmt.Errorf("k8s: %v: %s %v: %w", service, verb, k, err)
}

// advice returns what a user can do about err, a failure to list or watch the objects of kind k for the
// Service obj. It returns "" if the cause is not known.
func advice(obj object, k kind, err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("not allowed: the client's account needs a Role in namespace %s "+
			"with the verbs list and watch on the resource %v of the API group %q", obj.namespace, k, k.group())
	case apierrors.IsUnauthorized(err):
		return "not authenticated: the API server does not accept the client's credentials; they may have expired"
	// Only for slices: a missing Service does not fail a list, which is then empty.
	case apierrors.IsNotFound(err) && k == endpointSlices:
		return "the API server has no discovery.k8s.io/v1, which Kubernetes has since 1.21"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return "the API server has dropped the last resource version; everything is listed again"
	case apierrors.IsTooManyRequests(err):
		return "the API server is overloaded, or limits this client"
	// The last, because the API errors above can wrap a deadline too.
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer in %v", listTimeout)
	}
	return ""
}
