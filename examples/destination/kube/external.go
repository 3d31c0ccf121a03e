package kube

import (
	"net/netip"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// externalWorkload is the spec of an ExternalWorkload, a process with a proxy outside the cluster.
type externalWorkload struct {
	MeshTLS struct {
		Identity   string `json:"identity"`
		ServerName string `json:"serverName"`
	} `json:"meshTLS"`
	Ports []struct {
		Name string `json:"name"`
		Port uint16 `json:"port"`
	} `json:"ports"`
	WorkloadIPs []struct {
		IP string `json:"ip"`
	} `json:"workloadIPs"`
}

// proxyPort is how an ExternalWorkload names the port that its proxy listens on.
const proxyPort = "linkerd-proxy"

// external returns the ExternalWorkload with the name n, or nil if it does not exist or is invalid.
func (l *lookup) external(n kubeobject.Name) *resource[externalWorkload] {
	l.use(usesExternal, n.Namespace, n.Name)
	w := get[resource[externalWorkload]](l.cluster, "ExternalWorkload", n.Namespace, n.Name)
	if w == nil || w.spec == nil {
		return nil
	}
	return w
}

// externalEndpoint describes the ExternalWorkload w at addr. Its proxy uses the identity that w
// declares.
func (l *lookup) externalEndpoint(w *resource[externalWorkload], addr netip.AddrPort) controller.Endpoint {
	ep := controller.Endpoint{
		Addr: addr, Labels: map[string]string{"external_workload": w.GetName()},
		Identity: w.spec.MeshTLS.Identity, ServerName: w.spec.MeshTLS.ServerName, Protocol: controller.H2,
	}
	if l.isOpaque(externalOf(w), addr.Port()) {
		ep.Protocol = controller.Opaque
		// Clients connect to the proxy's port, and name the application's port in a transport header.
		ep.InboundPort = inboundPort
		for _, p := range w.spec.Ports {
			if p.Name == proxyPort {
				ep.InboundPort = p.Port
			}
		}
	}
	return ep
}

// workload is what policies need to know about a pod or an ExternalWorkload.
type workload struct {
	namespace           string
	labels, annotations map[string]string
	ports               []namedPort
	external            bool // it is an ExternalWorkload
}

func podOf(p *pod) workload {
	return workload{namespace: p.Namespace, labels: p.Labels, annotations: p.Annotations, ports: p.ports}
}

// externalOf returns what policies need to know about an ExternalWorkload.
func externalOf(w *resource[externalWorkload]) workload {
	converted := workload{namespace: w.GetNamespace(), labels: w.GetLabels(), annotations: w.GetAnnotations(), external: true}
	for _, p := range w.spec.Ports {
		converted.ports = append(converted.ports, namedPort{p.Name, p.Port})
	}
	return converted
}
