package cluster

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a running pod.
type Pod struct {
	Namespace, Name string
	IP              string
	Owners          []Resource // the workloads to which it belongs, from the nearest one
	Ready           bool

	// The following fields are empty for a pod without a proxy.

	Tap      string // host:port of the tap
	Metrics  string // host:port of the admin server
	Identity string // name that the proxy proves by TLS; "" if it cannot prove one

	TapClient                string // client that may watch; "" means only clients on its machine
	Authority, AuthorityName string // address and identity of linkerd-identity

	uid     types.UID
	account string // name of the ServiceAccount
	labels  map[string]string
}

// Meshed reports whether there is a proxy in the pod.
func (p *Pod) Meshed() bool { return p.Tap != "" }

// Labels returns the pod's labels in tap events: pod, namespace, serviceaccount and one for each
// of its owners.
func (p *Pod) Labels() map[string]string {
	all := map[string]string{"pod": p.Name, "namespace": p.Namespace, "serviceaccount": p.account}
	// An owner's kind is its label, except for jobs.
	for _, o := range p.Owners {
		all[o.Label()] = o.Name
	}
	return all
}

// The name of the proxy's container, and the proxy's default ports.
const (
	proxyContainer = "linkerd-proxy"
	tapPort        = "4190"
	adminPort      = "4191"
)

// newPod converts o, an object of the API server. It returns nil if the pod does not run.
func newPod(o *corev1.Pod) *Pod {
	// A pod without an address has not started yet, and one that has ended cannot be watched.
	if o.Status.PodIP == "" || o.Status.Phase != corev1.PodRunning {
		return nil
	}
	p := &Pod{
		Namespace: o.Namespace, Name: o.Name, IP: o.Status.PodIP, uid: o.UID, account: o.Spec.ServiceAccountName, labels: o.Labels,
	}
	// An empty name means the default account.
	if p.account == "" {
		p.account = "default"
	}
	p.Ready = slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	// A native sidecar is an init container.
	for _, container := range slices.Concat(o.Spec.Containers, o.Spec.InitContainers) {
		if container.Name != proxyContainer {
			continue
		}
		p.Tap = net.JoinHostPort(p.IP, portOf(&container, "linkerd-tap", "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", tapPort))
		p.Metrics = net.JoinHostPort(p.IP, portOf(&container, "linkerd-admin", "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", adminPort))
		p.Identity = p.identity(&container)
		p.TapClient = environ(&container, "LINKERD2_PROXY_TAP_SVC_NAME")
		p.Authority = environ(&container, "LINKERD2_PROXY_IDENTITY_SVC_ADDR")
		p.AuthorityName = environ(&container, "LINKERD2_PROXY_IDENTITY_SVC_NAME")
	}
	return p
}

// portOf returns the port with the given name in the container c, or else the port of the address
// in the environment variable variable, or else standard.
func portOf(c *corev1.Container, name, variable, standard string) string {
	// A named port has precedence, because it is what Kubernetes uses.
	for _, port := range c.Ports {
		if port.Name == name {
			return strconv.Itoa(int(port.ContainerPort))
		}
	}
	if _, port, err := net.SplitHostPort(environ(c, variable)); err == nil && port != "0" {
		return port
	}
	return standard
}

// environ returns the value of an environment variable in the container. It replaces a reference
// to an earlier variable, such as $(_l5d_ns), if the specification contains its value.
func environ(c *corev1.Container, name string) string {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return ""
	}
	value := c.Env[i].Value
	// Kubernetes replaces references to earlier variables only.
	for _, e := range c.Env[:i] {
		if e.Value != "" {
			value = strings.ReplaceAll(value, "$("+e.Name+")", e.Value)
		}
	}
	return value
}

// identity returns the TLS identity of the proxy in container c, such as
// web.shop.serviceaccount.identity.linkerd.cluster.local. The first two words are usually
// variables in c, so identity takes the service account and the namespace from p.
func (p *Pod) identity(c *corev1.Container) string {
	const middle = ".serviceaccount.identity."
	name := environ(c, "LINKERD2_PROXY_IDENTITY_LOCAL_NAME")
	// A SPIFFE ID is returned as it is.
	if name == "" {
		name = environ(c, "LINKERD2_PROXY_IDENTITY_SERVER_ID")
	}
	_, domain, ok := strings.Cut(name, middle)
	if !ok {
		return name
	}
	return p.account + "." + p.Namespace + middle + domain
}

// owner identifies an object's controller, such as the ReplicaSet of a pod.
type owner struct {
	kind, name string
	uid        types.UID
}

// controller returns the owner that is the object's controller, or the zero owner.
func controller(refs []metav1.OwnerReference) owner {
	// At most one owner is the controller.
	for _, r := range refs {
		if r.Controller != nil && *r.Controller {
			return owner{strings.ToLower(r.Kind), r.Name, r.UID}
		}
	}
	return owner{}
}

// ownersOf returns the workloads to which the pod o belongs. The first is the controller of o.
// If that is a ReplicaSet or a Job with a controller, this controller is the second. ownersOf
// requests each ReplicaSet and Job only once from the API server.
func (c *Cluster) ownersOf(ctx context.Context, o *corev1.Pod) ([]Resource, error) {
	first := controller(o.OwnerReferences)
	// Owners of other kinds cannot be named on the command line.
	if kindOf(first.kind) == nil {
		return nil, nil
	}
	// A Deployment owns ReplicaSets, and a CronJob owns Jobs. All other kinds have no owner of interest.
	all := []Resource{{Kind: first.kind, Namespace: o.Namespace, Name: first.name}}
	if first.kind != "replicaset" && first.kind != "job" {
		return all, nil
	}
	c.mu.Lock()
	second, ok := c.owners[first.uid]
	c.mu.Unlock()
	// Two goroutines may both ask, which is harmless.
	if !ok {
		u, err := c.get(ctx, all[0])
		switch {
		case apierrors.IsNotFound(err): // the pod is deleted next
			return all, nil
		case err != nil:
			return all, err
		}
		second = controller(u.GetOwnerReferences())
		c.mu.Lock()
		c.owners[first.uid] = second
		c.mu.Unlock()
	}
	if kindOf(second.kind) != nil {
		all = append(all, Resource{Kind: second.kind, Namespace: o.Namespace, Name: second.name})
	}
	return all, nil
}
