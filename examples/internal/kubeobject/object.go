// Package kubeobject holds what several programs read or write in Kubernetes objects: references,
// conditions, and the status of routes.
package kubeobject

import (
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// GatewayGroup is the Gateway API's group.
const GatewayGroup = "gateway.networking.k8s.io"

// Name is an object's namespace and name.
type Name struct{ Namespace, Name string }

// String returns the namespace and the name, separated by a slash.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// NameOf returns an object's namespace and name.
func NameOf(o metav1.Object) Name { return Name{o.GetNamespace(), o.GetName()} }

type (
	// Address is a Gateway's address.
	Address struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}

	// GroupKind identifies a kind of object. A nil Group means the Gateway API's.
	GroupKind struct {
		Group *string `json:"group,omitempty"`
		Kind  string  `json:"kind"`
	}

	// Reference refers to an object. Defaults for Group and Kind depend on the field that holds
	// the reference. A nil Namespace means the referring object's.
	Reference struct {
		Group     *string `json:"group,omitempty"`
		Kind      *string `json:"kind,omitempty"`
		Namespace *string `json:"namespace,omitempty"`
		Name      string  `json:"name"`
	}

	// ParentReference refers from a route to its parent, such as a Gateway. SectionName and Port
	// narrow the reference to a part of the parent, unless they are nil.
	ParentReference struct {
		Reference
		SectionName *string `json:"sectionName,omitempty"`
		Port        *int    `json:"port,omitempty"`
	}
)

// Equal reports whether k and o identify the same kind.
func (k GroupKind) Equal(o GroupKind) bool {
	return Or(k.Group, GatewayGroup) == Or(o.Group, GatewayGroup) && k.Kind == o.Kind
}

// Object returns the kind and name of the object that r refers to. The arguments apply where r's
// fields are nil.
func (r *Reference) Object(namespace, group, kind string) (GroupKind, Name) {
	return GroupKind{Group: new(Or(r.Group, group)), Kind: Or(r.Kind, kind)}, Name{Or(r.Namespace, namespace), r.Name}
}

// Or returns *p, or def if p is nil.
func Or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// Decode converts u to a T. Errors mention u's kind and name.
func Decode[T any](u *unstructured.Unstructured) (*T, error) {
	// The detour over JSON applies the tags and the types of T.
	text, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), NameOf(u), err)
	}
	return v, nil
}

// ClientConfig returns a client configuration for kubeconfig's API server, or for the cluster
// that the process runs in if kubeconfig is empty. It removes client-go's limit on requests per
// second, which would slow down controllers.
func ClientConfig(kubeconfig string) (cfg *rest.Config, err error) {
	if kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	// -1 disables the limit.
	cfg.QPS = -1
	return cfg, nil
}

// UserConfig returns a client configuration, found as kubectl does: in the file kubeconfig, or by
// default in KUBECONFIG, ~/.kube/config, or the pod. context selects one of the file's contexts;
// the default is the current one.
func UserConfig(kubeconfig, context string) (cfg *rest.Config, namespace string, err error) {
	// The rules are those of kubectl for finding the file.
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	cfg, err = loader.ClientConfig()
	switch {
	// Without any file, the error of client-go would not tell what to do.
	case clientcmd.IsEmptyConfig(err):
		return nil, "", errors.New("no cluster: --kubeconfig is not set, and neither KUBECONFIG nor ~/.kube/config is a configuration")
	case err != nil:
		return nil, "", err
	}
	namespace, _, err = loader.Namespace()
	return cfg, namespace, err
}
