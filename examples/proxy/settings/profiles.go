package settings

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// Policies returns a source of outbound policies that watches the policy controller over conn.
// workload identifies the proxy to the controller.
func (c *Control) Policies(conn grpc.ClientConnInterface, workload string, log *slog.Logger) profiles.Source {
	return linkerd.NewPolicies(conn, workload,
		linkerd.WithStreamLimits(linkerd.Limits(c.Limits())),
		linkerd.WithBackoff(c.Connect.Backoff),
		linkerd.WithLogger(log))
}

// Profiles returns a source of profiles that watches the destination controller over conn. It asks
// only for names in ProfileSuffixes and addresses in ProfileNetworks.
func (c *Control) Profiles(conn grpc.ClientConnInterface, log *slog.Logger) profiles.Source {
	names := make([]string, len(c.ProfileSuffixes))
	for i, suffix := range c.ProfileSuffixes {
		// In ProfileSuffixes, "" means all names. WithSuffixes writes that as ".", and permits a final dot elsewhere.
		names[i] = suffix + "."
	}
	return linkerd.New(conn,
		linkerd.WithSuffixes(names...),
		linkerd.WithNetworks(c.ProfileNetworks...),
		linkerd.WithContextToken(c.ContextToken),
		linkerd.WithStreamLimits(linkerd.Limits(c.Limits())),
		linkerd.WithBackoff(c.Connect.Backoff),
		linkerd.WithLogger(log))
}
