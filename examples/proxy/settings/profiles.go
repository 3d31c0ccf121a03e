package settings

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// Profiles returns the source of profiles: the destination controller behind conn, for
// the names and addresses that the settings allow.
func (c *Control) Profiles(conn grpc.ClientConnInterface, log *slog.Logger) profiles.Source {
	names := make([]string, len(c.ProfileSuffixes))
	for i, suffix := range c.ProfileSuffixes {
		names[i] = suffix + "." // linkerd.WithSuffixes uses "." for all names and "" for no name
	}
	return linkerd.New(conn,
		linkerd.WithSuffixes(names...),
		linkerd.WithNetworks(c.ProfileNetworks...),
		linkerd.WithContextToken(c.ContextToken),
		linkerd.WithStreamLimits(linkerd.Limits(c.Limits())),
		linkerd.WithBackoff(c.Connect.Backoff),
		linkerd.WithLogger(log))
}
