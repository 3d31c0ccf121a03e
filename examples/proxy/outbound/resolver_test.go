package outbound

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// Names outside the suffixes do not exist.
func TestResolverSuffixes(t *testing.T) {
	endpoints := []resolve.Endpoint{{ID: resolve.ID{Addr: netip.MustParseAddrPort("192.0.2.1:80")}}}
	all := static.New(map[string][]resolve.Endpoint{
		"web.default.svc.cluster.local:80": endpoints, "web.example:80": endpoints, "notsvc.cluster.local:80": endpoints,
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
				require.Equal(t, endpoints, u.Endpoints, target)
			} else {
				require.Equal(t, resolve.DoesNotExist, u.Kind, target)
			}
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range only(settings.Suffixes{"x"}, all).Resolve(ctx, "web.example:80") {
		cancel() // the sequence ends with ctx
	}
}

// controllerless rejects all streams and counts them.
type controllerless struct {
	grpc.ClientConnInterface
	streams int
}

func (c *controllerless) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams++
	return nil, status.Error(codes.InvalidArgument, "unknown name")
}

// By default, only the cluster's Services have profiles.
func TestProfileSuffixes(t *testing.T) {
	for name, tt := range map[string]struct {
		given, target string
		streams       int
	}{
		"unset":                      {"unset", "web.default.svc.cluster.local:80", 1},
		"unset, outside the cluster": {"unset", "web.example:80", 0},
		"all":                        {".", "web.example:80", 1},
		"none":                       {"", "web.default.svc.cluster.local:80", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := settings.Read(func(name string) (string, bool) {
				switch name {
				case settings.Prefix + "DESTINATION_SVC_ADDR":
					return "127.0.0.1:8086", true
				case settings.Prefix + "DESTINATION_PROFILE_SUFFIXES":
					return tt.given, tt.given != "unset"
				}
				return "", false
			})
			require.NoError(t, err)
			c := new(controllerless)
			for p, err := range s.Control.Profiles(c, nil).Watch(t.Context(), tt.target) {
				require.Nil(t, p)
				require.ErrorIs(t, err, profiles.ErrNoProfile)
			}
			require.Equal(t, tt.streams, c.streams)
		})
	}
}
