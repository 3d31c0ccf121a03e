package settings

import (
	"slices"
	"strings"
)

const (
	services        = "svc" // the label that Kubernetes has below the domain of a cluster
	usualOfServices = services + ".cluster.local"
)

// ServiceSuffixes are those that the names of the cluster's Services end with,
// as svc.cluster.local: what follows the namespaces in the suffixes that the
// controller is asked for. No variable says the domain of the cluster itself; who
// installs a proxy in a cluster of another domain says it there. Suffixes
// without svc, such as the root, say nothing; if all do, it is cluster.local.
func (c *Control) ServiceSuffixes() []string {
	var found []string
	for _, suffix := range slices.Concat(c.ProfileSuffixes, c.GetSuffixes) {
		labels := strings.Split(suffix, ".")
		if i := slices.Index(labels, services); i >= 0 && i < len(labels)-1 {
			found = append(found, strings.Join(labels[i:], "."))
		}
	}
	if len(found) == 0 {
		return []string{usualOfServices}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
