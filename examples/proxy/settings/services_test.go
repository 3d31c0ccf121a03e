package settings_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// The cluster's domain is derived from the names that are requested from the controller.
func TestServiceSuffixes(t *testing.T) {
	for name, tt := range map[string]struct {
		profiles, endpoints settings.Suffixes
		want                []string
	}{
		"the default":       {settings.Suffixes{"svc.cluster.local"}, settings.Suffixes{""}, []string{"svc.cluster.local"}},
		"another domain":    {settings.Suffixes{"svc.prod.example.org"}, settings.Suffixes{""}, []string{"svc.prod.example.org"}},
		"of endpoints":      {settings.Suffixes{""}, settings.Suffixes{"svc.prod.example.org"}, []string{"svc.prod.example.org"}},
		"of a namespace":    {settings.Suffixes{"shop.svc.prod", "svc.prod"}, nil, []string{"svc.prod"}},
		"two":               {settings.Suffixes{"svc.b", "example.org", "svc.a"}, settings.Suffixes{"svc.a"}, []string{"svc.a", "svc.b"}},
		"all names":         {settings.Suffixes{""}, settings.Suffixes{""}, []string{"svc.cluster.local"}},
		"no names":          {nil, nil, []string{"svc.cluster.local"}},
		"without a domain":  {settings.Suffixes{"svc"}, nil, []string{"svc.cluster.local"}},
		"not a whole label": {settings.Suffixes{"mysvc.example.org"}, nil, []string{"svc.cluster.local"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := settings.Control{ProfileSuffixes: tt.profiles, GetSuffixes: tt.endpoints}
			require.Equal(t, tt.want, c.ServiceSuffixes())
		})
	}
}
