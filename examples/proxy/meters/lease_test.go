package meters

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// What comes and goes leaves nothing behind, though what it counts in stays.
func TestLeaseWithoutAnEndRemembersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			m.Endpoint(ctx, Outbound, nil)
			m.Balancer(ctx, "http", "web.example:80")
			m.Balancer(ctx, "tcp", "web.example:80")
			m.Authz("http", nil)
			cancel()
		}
		synctest.Wait()
		require.Empty(t, m.always.drops)
		require.Len(t, m.stacks.created.series, 3)
		require.Len(t, m.stacks.dropped.series, 3)
	})
}
