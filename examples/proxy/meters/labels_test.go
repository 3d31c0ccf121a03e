package meters

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Only names in the cluster's domain are Services.
func TestServices(t *testing.T) {
	for authority, service := range map[string]bool{
		"web.shop.svc:80": true, "web.shop.svc": true, "web.shop.svc.cluster.local:80": true,
		"web.shop.svc.cluster.local.:80": true, "web.shop.SVC.Cluster.Local:80": true,
		"web.shop.svc.evil.com:80": false, "web.shop.svc.cluster.local.evil.com:80": false, "web.shop.svc.cluster:80": false,
		"web.shop.svcs:80": false, "web.shop:80": false, "a.web.shop.svc:80": false, "10.0.0.1:80": false, "[fd00::1]:80": false,
	} {
		labels := New(Config{}).meta("parent", authority)
		if service {
			require.Equal(t, "Service", labels["parent_kind"], authority)
			require.Equal(t, "web", labels["parent_name"], authority)
			require.Equal(t, "shop", labels["parent_namespace"], authority)
			continue
		}
		require.Equal(t, "default", labels["parent_kind"], authority)
		require.Empty(t, labels["parent_namespace"], authority)
	}
}

// The cluster's domain can be configured.
func TestServicesOfAnotherDomain(t *testing.T) {
	m := New(Config{ServiceSuffixes: []string{"svc.prod.example.org", "svc.old"}})
	for authority, kind := range map[string]string{
		"web.shop.svc.prod.example.org:80": "Service", "web.shop.SVC.Prod.Example.Org.:80": "Service", "web.shop.svc.old:80": "Service",
		"web.shop.svc:80": "Service", "web.shop.svc.cluster.local:80": "default", "web.shop.prod.example.org:80": "default",
		"web.shop.svc.dev.example.org:80": "default",
	} {
		for _, prefix := range []string{"parent", "backend"} {
			labels := m.meta(prefix, authority)
			require.Equal(t, kind, labels[prefix+"_kind"], authority)
			require.Equal(t, kind == "Service", labels[prefix+"_name"] == "web" && labels[prefix+"_namespace"] == "shop", authority)
		}
	}
}
