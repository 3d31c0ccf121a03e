package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/destination/controller"
)

// node is what the controller keeps from a Node: its zone.
type node struct {
	metav1.ObjectMeta

	zone string
}

func transformNode(o any) (any, error) {
	received, ok := o.(*corev1.Node)
	if !ok {
		// The object is a marker for a deletion that was missed, or converted already.
		return o, nil
	}
	return &node{
		ObjectMeta: metav1.ObjectMeta{Name: received.Name, ResourceVersion: received.ResourceVersion},
		zone:       intern(received.Labels[corev1.LabelTopologyZone]),
	}, nil
}

// namespace is what the controller keeps from a Namespace: its annotations.
type namespace struct{ metav1.ObjectMeta }

func transformNamespace(o any) (any, error) {
	received, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	return &namespace{meta(&received.ObjectMeta, false)}, nil // without labels
}

// zoneOf returns a node's zone, or "" if it is not known.
func (l *lookup) zoneOf(name string) string {
	if name == "" {
		return ""
	}
	// Record the use first: the answer also depends on the absence of the Node.
	l.use(usesNode, "", name)
	if n := get[node](l.cluster, "Node", "", name); n != nil {
		return n.zone
	}
	return ""
}

// placed is an endpoint with what decides which zones use it.
type placed struct {
	controller.Endpoint

	zone  string
	hints []string // zones whose clients should use the endpoint
}

// near selects the endpoints for a client in the given zone. If every endpoint carries hints and
// at least one names the client's zone, near returns only the endpoints with such a hint. In all
// other cases it returns everything, because a partial set of hints could leave a zone without
// endpoints. The label zone_locality tells whether an endpoint is in the client's zone, if both
// zones are known.
func near(all []placed, zone string) []controller.Endpoint {
	isNear := func(p placed) bool { return slices.Contains(p.hints, zone) }
	// hinted is true only if hints are complete and useful for this zone.
	hinted := zone != "" && slices.ContainsFunc(all, isNear) &&
		!slices.ContainsFunc(all, func(p placed) bool { return len(p.hints) == 0 })
	endpoints := make([]controller.Endpoint, 0, len(all))
	for _, p := range all {
		if hinted && !isNear(p) {
			continue
		}
		// Without both zones, it is not known how far away the endpoint is.
		if zone != "" && p.zone != "" {
			p.Labels["zone_locality"] = "remote"
			if p.zone == zone {
				p.Labels["zone_locality"] = "local"
			}
		}
		endpoints = append(endpoints, p.Endpoint)
	}
	return endpoints
}
