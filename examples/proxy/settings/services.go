package settings

import (
	"slices"
	"strings"
)

const (
	services             = "svc" // Kubernetes's DNS label above the cluster domain
	defaultServiceSuffix = services + ".cluster.local"
)

// ServiceSuffixes returns the domain suffixes of Kubernetes Services, such as svc.cluster.local. No
// variable contains the cluster domain, so they are derived from ProfileSuffixes and GetSuffixes.
// The default is svc.cluster.local.
func (c *Control) ServiceSuffixes() []string {
	var found []string
	for _, suffix := range slices.Concat(c.ProfileSuffixes, c.GetSuffixes) {
		labels := strings.Split(suffix, ".")
		// A suffix below the cluster's domain contains "svc" and at least one more label.
		if i := slices.Index(labels, services); i >= 0 && i < len(labels)-1 {
			found = append(found, strings.Join(labels[i:], "."))
		}
	}
	if len(found) == 0 {
		return []string{defaultServiceSuffix}
	}
	// Both lists often contain the same domain.
	slices.Sort(found)
	return slices.Compact(found)
}
