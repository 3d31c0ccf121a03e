package settings

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// Profiles are asked for at the destination controller, which is asked by way of
// conn: those of the names, and of the addresses, that the settings say.
func (c *Control) Profiles(conn grpc.ClientConnInterface, log *slog.Logger) profiles.Source {
	names := make([]string, len(c.ProfileSuffixes))
	for i, suffix := range c.ProfileSuffixes {
		names[i] = suffix + "." // the root is all there, and an empty name none
	}
	return linkerd.New(conn,
		linkerd.Names(names...),
		linkerd.Networks(c.ProfileNetworks...),
		linkerd.ContextToken(c.ContextToken),
		linkerd.StreamLimits(linkerd.Limits(c.Limits())),
		linkerd.Backoff(c.Connect.Backoff),
		linkerd.Logger(log))
}
