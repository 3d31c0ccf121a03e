package cluster

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
)

// Edge is a relation between two resources: one has made connections to the other.
type Edge struct {
	Source, SourceNamespace           string
	Destination, DestinationNamespace string

	ClientID, ServerID string // the identities, without the suffix of the trust domain
	NoTLS              string // the reason for cleartext, such as "not_provided_by_service_discovery"; "" for TLS
}

// Edges returns the edges from and to the pods of the resources. An edge means that a resource has
// opened connections to another one; kind, such as "deployment", is the kind of the resources at its two
// ends, to which the pods are added up. A source outside of the resources appears with its service
// account's name, because only its identity is known. Edges calls warn for each proxy that does not
// return its metrics.
func (c *Cluster) Edges(ctx context.Context, resources []Resource, kind string, warn func(error)) ([]Edge, error) {
	pods, err := c.Pods(ctx, resources)
	if err != nil {
		return nil, err
	}
	return edges(pods.Of, scrape(ctx, pods.Of, []string{"tcp_open_total"}, warn), Resource{Kind: kind}.Label()), ctx.Err()
}

// edges returns the edges in the pods' metrics. label is the label for the resources' kind, such
// as deployment. Most edges come from the metrics for outbound connections, which name both sides.
// The metrics for inbound connections add the edges from clients outside of the pods.
func edges(pods []Pod, metrics map[string]series, label string) []Edge {
	found := map[Edge]bool{}
	clients := map[[3]string]bool{} // destination, its namespace, and the client identity of each edge in found
	for _, p := range pods {
		source := p.Labels()[label]
		namespace := p.Namespace
		// since(nil) yields every metric with its labels.
		for s := range metrics[p.key()].since(nil) {
			destination := s.labels["dst_"+label]
			// Only connections to endpoints name both sides.
			if source == "" || destination == "" || s.labels["direction"] != "outbound" || s.labels["peer"] != "dst" {
				continue
			}
			e := Edge{
				Source: source, SourceNamespace: namespace, Destination: destination, DestinationNamespace: s.labels["dst_namespace"],
				NoTLS: s.labels["no_tls_reason"],
			}
			// Without TLS, nobody has proven an identity.
			if s.labels["tls"] == "true" {
				e.ClientID = account(p.Identity)
				e.ServerID = account(s.labels["server_id"])
			}
			found[e] = true
			clients[[3]string{e.Destination, e.DestinationNamespace, e.ClientID}] = true
		}
	}
	for _, p := range pods { // clients whose own metrics are not known
		destination := p.Labels()[label]
		for s := range metrics[p.key()].since(nil) {
			client := account(s.labels["client_id"])
			// The edge is already known from the client's own metrics.
			if destination == "" || client == "" || s.labels["direction"] != "inbound" || s.labels["peer"] != "src" ||
				clients[[3]string{destination, p.Namespace, client}] {
				continue
			}
			// A client that is not in the cluster's resources is only known by its account.
			name, namespace, _ := strings.Cut(client, ".")
			found[Edge{
				Source: name, SourceNamespace: namespace, Destination: destination, DestinationNamespace: p.Namespace,
				ClientID: client, ServerID: account(p.Identity),
			}] = true
		}
	}
	// The order is that of the table: by source, then by destination.
	return slices.SortedFunc(maps.Keys(found), func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.SourceNamespace, b.SourceNamespace), cmp.Compare(a.Source, b.Source),
			cmp.Compare(a.DestinationNamespace, b.DestinationNamespace), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.NoTLS, b.NoTLS), cmp.Compare(a.ClientID, b.ClientID), cmp.Compare(a.ServerID, b.ServerID))
	})
}

// account returns the service account in an identity of linkerd, as name.namespace. It returns any
// other identity unchanged.
func account(identity string) string {
	name, _, _ := strings.Cut(identity, ".serviceaccount.identity.")
	return name
}
