package kube

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// Namespace is the default namespace of the control plane.
const Namespace = "linkerd"

//go:embed rbac.yaml
var rbac string

// RBAC returns the manifests of the ServiceAccount linkerd-identity and its rights, in YAML.
// namespace is the control plane's namespace.
func RBAC(namespace string) string {
	return strings.ReplaceAll(rbac, "namespace: "+Namespace+"}", "namespace: "+namespace+"}")
}

// Client returns a client for kubeconfig's API server, or for the cluster that the process runs
// in if kubeconfig is empty.
func Client(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := kubeobject.ClientConfig(kubeconfig) // a Reviewer has its own limits
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	cfg.UserAgent = "gotower-identity"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	return client, nil
}
