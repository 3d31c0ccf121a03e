package outbound

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// Names that no endpoints are to be asked for do not exist, whoever says them.
func TestOnlySomeNamesAreAskedFor(t *testing.T) {
	known := []resolve.Endpoint{{ID: resolve.ID{Addr: netip.MustParseAddrPort("192.0.2.1:80")}}}
	all := static.New(map[string][]resolve.Endpoint{
		"web.default.svc.cluster.local:80": known, "web.example:80": known, "notsvc.cluster.local:80": known,
	})
	for suffix, want := range map[string][]string{
		"svc.cluster.local": {"web.default.svc.cluster.local:80"},
		"":                  {"web.default.svc.cluster.local:80", "web.example:80", "notsvc.cluster.local:80"},
	} {
		r := only(settings.Suffixes{suffix}, all)
		for _, target := range []string{"web.default.svc.cluster.local:80", "web.example:80", "notsvc.cluster.local:80"} {
			next, stop := iter.Pull2(r.Resolve(t.Context(), target))
			u, err, ok := next()
			stop()
			require.True(t, ok)
			require.NoError(t, err)
			if slices.Contains(want, target) {
				require.Equal(t, known, u.Endpoints, target)
			} else {
				require.Equal(t, resolve.DoesNotExist, u.Kind, target)
			}
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range only(settings.Suffixes{"x"}, all).Resolve(ctx, "web.example:80") {
		cancel() // it goes on until then
	}
}
