// Package kubeobject has the parts of Kubernetes objects that several programs read or
// write: references, conditions, and the status of routes.
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

// GatewayGroup is the API group of the Gateway API.
const GatewayGroup = "gateway.networking.k8s.io"

// Name is the namespace and the name of an object.
type Name struct{ Namespace, Name string }

// String returns the namespace and the name, separated by a slash.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// NameOf returns the namespace and the name of o.
func NameOf(o metav1.Object) Name { return Name{o.GetNamespace(), o.GetName()} }

type (
	// Address is an address of a Gateway.
	Address struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}

	// GroupKind identifies a kind of objects. A nil Group means the group of the Gateway
	// API.
	GroupKind struct {
		Group *string `json:"group,omitempty"`
		Kind  string  `json:"kind"`
	}

	// Reference refers to an object. The defaults of Group and Kind depend on the
	// field that has the reference. A nil Namespace means the namespace of the referring
	// object.
	Reference struct {
		Group     *string `json:"group,omitempty"`
		Kind      *string `json:"kind,omitempty"`
		Namespace *string `json:"namespace,omitempty"`
		Name      string  `json:"name"`
	}

	// ParentReference refers from a route to a parent, such as a Gateway. SectionName and
	// Port limit the reference to some parts of the parent. A nil field does not limit it.
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

// Object returns the kind and the name of the object to which r refers. If the field
// Namespace, Group or Kind of r is nil, the argument with the same name applies.
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

// Decode converts u to a T. The error contains the kind and the name of u.
func Decode[T any](u *unstructured.Unstructured) (*T, error) {
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

// ClientConfig returns the configuration of a client of the API server that the file kubeconfig
// specifies. If kubeconfig is empty, the client uses the API server of the cluster in which the
// process runs. The client has no limit of requests per second.
func ClientConfig(kubeconfig string) (cfg *rest.Config, err error) {
	if kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}

// UserConfig returns a configuration as kubectl finds it: that of the file kubeconfig, or by
// default that of KUBECONFIG, of ~/.kube/config, or of the pod. The argument context is the name of
// a context of the file. The default is its current context.
func UserConfig(kubeconfig, context string) (cfg *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	cfg, err = loader.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, "", errors.New("no cluster: --kubeconfig is not set, and neither KUBECONFIG nor ~/.kube/config is a configuration")
	case err != nil:
		return nil, "", err
	}
	namespace, _, err = loader.Namespace()
	return cfg, namespace, err
}
