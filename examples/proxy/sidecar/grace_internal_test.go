package sidecar

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What connections took of the grace is not left for who operates.
func TestGraceThatIsLeft(t *testing.T) {
	for _, tt := range []struct{ grace, took, want time.Duration }{
		{10 * time.Second, 4 * time.Second, 6 * time.Second},
		{10 * time.Second, 10 * time.Second, lastWord},
		{0, 0, lastWord},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := new(Proxy)
			p.config.Shutdown.Grace = tt.grace
			ctx, end := context.WithCancel(t.Context())
			require.Equal(t, tt.grace, p.grace(ctx)(), "it is not the end")
			left := p.grace(ctx)
			end()
			synctest.Wait()
			time.Sleep(tt.took)
			require.Equal(t, tt.want, left())
		})
	}
}
