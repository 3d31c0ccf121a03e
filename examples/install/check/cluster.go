package check

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/install/manifest"
)

// checker holds the options for [Run], and the trust anchors and the Kubernetes version, which
// one check reads and later checks use.
type checker struct {
	Options

	anchors    []byte // trust anchors in PEM
	kubernetes string
}

// api returns the check that the API server answers, whose version later checks use.
func (c *checker) api() category {
	return category{"kubernetes-api", []check{{
		description: "can query the Kubernetes API", fatal: true,
		hint: "verify the kubeconfig and the network to the API server: kubectl version",
		run: func(context.Context) error {
			info, err := c.Client.Discovery().ServerVersion()
			if err == nil {
				c.kubernetes = info.Major + "." + info.Minor
			}
			return err
		},
	}}}
}

// Minor versions of Kubernetes 1: the lowest that the control plane supports, and the first with
// native sidecars.
const (
	minimum = 25
	native  = 29
)

// version returns the checks on the version of Kubernetes, which api has read.
func (c *checker) version() category {
	// since returns a check that the cluster has at least version 1.want.
	since := func(want int) func(context.Context) error {
		return func(context.Context) error {
			major, minor, _ := strings.Cut(c.kubernetes, ".")
			if n, err := strconv.Atoi(strings.TrimRight(minor, "+")); major != "1" || err != nil || n < want {
				return fmt.Errorf("the version is %s, and must be at least 1.%d", c.kubernetes, want)
			}
			return nil
		}
	}
	return category{"kubernetes-version", []check{
		{description: "is running the minimum Kubernetes API version", hint: "upgrade the cluster", run: since(minimum)},
		{
			description: "has native sidecar containers", warning: true, run: since(native),
			hint: "upgrade the cluster; or use install -native-sidecar=false, and do not inject Jobs, because they do not end",
		},
	}}
}

// setup returns the checks that determine whether the control plane can be installed.
func (c *checker) setup() category {
	absent := check{
		description: "control plane namespace does not already exist",
		hint:        "for an upgrade, use install -keep-identity; for a second control plane, use -namespace",
		run: func(ctx context.Context) error {
			_, err := c.Client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
			// The check succeeds if the namespace is missing.
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return fmt.Errorf("the namespace %q exists", c.Namespace)
		},
	}
	definitions := check{
		description: "definitions of linkerd and of the Gateway API do not already exist", warning: true,
		hint: "use install -crds=false, because its definitions have fewer fields; apply missing ones from the same release",
		run: func(ctx context.Context) error {
			var absent missing
			var existing []string
			for _, name := range manifest.CRDs() {
				// look adds name to absent if the definition does not exist.
				n := len(absent)
				if err := absent.look(name, c.hasDefinition(ctx, name)); err != nil {
					return err
				}
				if len(absent) == n {
					existing = append(existing, name)
				}
			}
			if len(existing) == 0 {
				return nil
			}
			// With some definitions, the missing ones have to be added by hand.
			return errors.Join(errors.New("existing: "+strings.Join(existing, ", ")), absent.err())
		},
	}
	// These are the kinds of objects that the manifests contain.
	resources := []struct{ group, resource, title string }{
		{"", "namespaces", "Namespaces"},
		{"rbac.authorization.k8s.io", "clusterroles", "ClusterRoles"},
		{"rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBindings"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinitions"},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", "MutatingWebhookConfigurations"},
		{"admissionregistration.k8s.io", "validatingwebhookconfigurations", "ValidatingWebhookConfigurations"},
		{"", "serviceaccounts", "ServiceAccounts"}, {"", "services", "Services"}, {"apps", "deployments", "Deployments"},
		{"", "configmaps", "ConfigMaps"}, {"", "secrets", "Secrets"},
		{"policy", "poddisruptionbudgets", "PodDisruptionBudgets"}, {"networking.k8s.io", "networkpolicies", "NetworkPolicies"},
		{"rbac.authorization.k8s.io", "roles", "Roles"}, {"rbac.authorization.k8s.io", "rolebindings", "RoleBindings"},
	}
	checks := append(make([]check, 0, 2+len(resources)), absent, definitions)
	for _, r := range resources {
		checks = append(checks, check{
			description: "can create " + r.title,
			hint:        "run it as a user with the role cluster-admin",
			run:         func(ctx context.Context) error { return c.canCreate(ctx, r.group, r.resource) },
		})
	}
	return category{"pre-kubernetes-setup", checks}
}

// hasDefinition returns an error unless the CustomResourceDefinition with the given name
// exists.
func (c *checker) hasDefinition(ctx context.Context, name string) error {
	return c.Client.Discovery().RESTClient().Get().
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + name).Do(ctx).Error()
}

// canCreate returns an error unless this user may create the resource in the namespace of the control plane.
func (c *checker) canCreate(ctx context.Context, group, resource string) error {
	review, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: c.Namespace, Verb: "create", Group: group, Resource: resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !review.Status.Allowed {
		return errors.New(strings.TrimSpace("this user may not create " + resource + " " + review.Status.Reason))
	}
	return nil
}

// installHint is the hint for checks that fail without a control plane.
const installHint = "install the control plane: install | kubectl apply -f -"

// existence returns the checks on the control plane's namespace and Deployments.
func (c *checker) existence() category {
	return category{"linkerd-existence", []check{
		{
			// The other checks need the namespace, so they do not run without it.
			description: "control plane namespace exists", hint: installHint, fatal: true,
			run: func(ctx context.Context) error {
				_, err := c.Client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
				return err
			},
		},
		{description: "control plane Deployments exist", hint: installHint, fatal: true, run: func(ctx context.Context) error {
			var m missing
			for _, name := range manifest.Components() {
				_, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, name, metav1.GetOptions{})
				if err := m.look(name, err); err != nil {
					return err
				}
			}
			return m.err()
		}},
		{
			description: "control plane pods are ready", wait: true, run: c.podsReady,
			hint: "read their events and logs: kubectl describe pods and kubectl logs, with -n " + c.Namespace,
		},
	}}
}

// podsReady returns an error that names each of the control plane's Deployments whose replicas
// are not all updated and ready.
func (c *checker) podsReady(ctx context.Context) error {
	var unready []string
	for _, name := range manifest.Components() {
		d, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// A Deployment without a number has one replica.
		want := int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		// With an older ObservedGeneration, the counts do not tell of the latest change.
		if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < want || d.Status.ReadyReplicas < want {
			unready = append(unready, fmt.Sprintf("%s: %d of %d replicas are ready", name, d.Status.ReadyReplicas, want))
		}
	}
	if len(unready) > 0 {
		return errors.New(strings.Join(unready, "\n"))
	}
	return nil
}

// applyAgain is the hint for checks on installed objects.
const applyAgain = "apply the manifests again: install -keep-identity and the same flags, | kubectl apply --server-side -f -"

// configuration returns the checks on the control plane's other objects, such as roles and
// Services.
func (c *checker) configuration() category {
	// exist returns the check that get finds all the named objects.
	exist := func(title string, names []string, get func(ctx context.Context, name string) error) check {
		return check{description: "control plane " + title + " exist", hint: applyAgain, run: func(ctx context.Context) error {
			var m missing
			for _, name := range names {
				if err := m.look(name, get(ctx, name)); err != nil {
					return err
				}
			}
			return m.err()
		}}
	}
	// role returns the name of a component's ClusterRole, which is unique in the cluster.
	role := func(component string) string { return "linkerd-" + c.Namespace + "-" + component }
	roles := []string{role("destination"), role("identity"), role("proxy-injector")}
	options := metav1.GetOptions{}
	return category{"linkerd-config", []check{
		exist("ServiceAccounts", manifest.Components(), func(ctx context.Context, name string) error {
			_, err := c.Client.CoreV1().ServiceAccounts(c.Namespace).Get(ctx, name, options)
			return err
		}),
		exist("ClusterRoles", roles, func(ctx context.Context, name string) error {
			_, err := c.Client.RbacV1().ClusterRoles().Get(ctx, name, options)
			return err
		}),
		exist("ClusterRoleBindings", roles, func(ctx context.Context, name string) error {
			_, err := c.Client.RbacV1().ClusterRoleBindings().Get(ctx, name, options)
			return err
		}),
		exist("RoleBindings", manifest.Components(), func(ctx context.Context, name string) error {
			_, err := c.Client.RbacV1().RoleBindings(c.Namespace).Get(ctx, name, options)
			return err
		}),
		exist("CustomResourceDefinitions", manifest.CRDs(), func(ctx context.Context, name string) error {
			return c.hasDefinition(ctx, name)
		}),
		exist("PodDisruptionBudgets", manifest.Components(), func(ctx context.Context, name string) error {
			_, err := c.Client.PolicyV1().PodDisruptionBudgets(c.Namespace).Get(ctx, name, options)
			return err
		}),
		exist("Services", []string{"linkerd-dst-headless", "linkerd-identity-headless", "linkerd-proxy-injector", "linkerd-sp-validator"},
			func(ctx context.Context, name string) error {
				_, err := c.Client.CoreV1().Services(c.Namespace).Get(ctx, name, options)
				return err
			}),
	}}
}
