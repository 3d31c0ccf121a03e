package cluster

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authz "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Version returns the version of the API server, such as v1.30.1.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	data, err := c.client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var info struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(data, &info); err != nil {
		return "", fmt.Errorf("/version: %w", err)
	}
	return info.GitVersion, nil
}

// Right is something that the user may do: a verb on a resource in a namespace. Resource may be a
// subresource, such as serviceaccounts/token. A Namespace of "" means all namespaces. If Name is
// not "", the right is only for the object with this name.
type Right struct{ Verb, Resource, Group, Namespace, Name string }

// String returns the right as arguments to "kubectl auth can-i".
func (r Right) String() string {
	name := r.Resource
	if r.Group != "" {
		name += "." + r.Group
	}
	if r.Name != "" {
		name += " " + r.Name
		// kubectl writes a subresource as a flag.
		if resource, subresource, ok := strings.Cut(r.Resource, "/"); ok {
			name = resource + "/" + r.Name + " --subresource=" + subresource
		}
	}
	if r.Namespace == "" {
		return r.Verb + " " + name + " -A"
	}
	return r.Verb + " " + name + " -n " + r.Namespace
}

// Rights returns the rights that tapctl needs to find the pods of the resources in a cluster.
func Rights(resources []Resource) []Right {
	// One namespace suffices for all rights if the resources share it.
	namespace := common(resources)
	all := make([]Right, 0, 4+len(resources))
	// Pods are found by watching, and their owners one by one.
	all = append(all, Right{"list", "pods", "", namespace, ""}, Right{"watch", "pods", "", namespace, ""},
		Right{"get", "replicasets", "apps", namespace, ""}, Right{"get", "jobs", "batch", namespace, ""})
	for _, r := range resources {
		k := kindOf(r.Kind)
		verb := "get"
		if r.Name == "" {
			verb = "list"
		}
		all = append(all, Right{verb, k.Resource, k.Group, r.Namespace, r.Name})
	}
	return all
}

// IdentityRights returns the rights that [Cluster.Identify] needs for the pods, and the
// right to read linkerd's trust anchors. controlPlane is the namespace of
// linkerd's control plane.
func IdentityRights(controlPlane string, pods []Pod) []Right {
	all := []Right{{"get", "configmaps", "", controlPlane, anchorsConfigMap}}
	for _, p := range pods {
		// The identity of a ServiceAccount is NAME.NAMESPACE.serviceaccount.identity.….
		account, _, _ := strings.Cut(p.TapClient, ".serviceaccount.identity.")
		name, namespace, ok := strings.Cut(account, ".")
		if !ok {
			continue
		}
		for _, r := range []Right{{"create", "serviceaccounts/token", "", namespace, name}, {"list", "pods", "", controlPlane, ""}} {
			if !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

// Denied returns the rights that the user lacks.
func (c *Cluster) Denied(ctx context.Context, rights []Right) ([]Right, error) {
	var denied []Right
	for _, r := range rights {
		// The API wants the subresource apart.
		resource, subresource, _ := strings.Cut(r.Resource, "/")
		answer, err := c.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authz.SelfSubjectAccessReview{
			Spec: authz.SelfSubjectAccessReviewSpec{ResourceAttributes: &authz.ResourceAttributes{
				Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Name: r.Name,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if !answer.Status.Allowed {
			denied = append(denied, r)
		}
	}
	return denied, nil
}

// The ConfigMap with linkerd's trust anchors, and the key of its entry with the PEM certificates.
const (
	anchorsConfigMap = "linkerd-identity-trust-roots"
	anchorsKey       = "ca-bundle.crt"
)

// anchors returns the trust anchors of the control plane in the given namespace, in PEM.
func (c *Cluster) anchors(ctx context.Context, namespace string) ([]byte, error) {
	m, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, anchorsConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return []byte(m.Data[anchorsKey]), nil
}

// TrustAnchors returns the trust anchors of the control plane in the given namespace. It returns
// an error if there are none.
func (c *Cluster) TrustAnchors(ctx context.Context, namespace string) ([]*x509.Certificate, error) {
	rest, err := c.anchors(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	// A ConfigMap may contain several anchors, one after the other.
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", namespace, anchorsConfigMap, err)
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s/%s: no certificate in the key %s", namespace, anchorsConfigMap, anchorsKey)
	}
	return all, nil
}

// ErrNoCertificate says that a proxy with an identity has not obtained a certificate yet.
var ErrNoCertificate = errors.New("it has no certificate yet")

// CertificateExpiry returns when the certificate of p's proxy expires, as the proxy's metrics
// tell, or the zero time for a proxy without an identity.
func CertificateExpiry(ctx context.Context, p Pod) (time.Time, error) {
	const patience = 5 * time.Second
	// Linkerd's proxy and gotower's have different names for the metric.
	names := []string{"control_identity_cert_expiration_timestamp_seconds", "identity_cert_expiration_timestamp_seconds"}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	all, err := readMetrics(ctx, &client, p.Metrics, names)
	switch {
	case err != nil || p.Identity == "":
		return time.Time{}, err
	// A value of 0 means that there is no certificate yet.
	case len(all) == 0 || all[names[0]]+all[names[1]] == 0:
		return time.Time{}, ErrNoCertificate
	}
	return time.Unix(int64(all[names[0]]+all[names[1]]), 0), nil // every proxy exports one of them
}
