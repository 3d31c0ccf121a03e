package sidecar

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The operators get the rest of the grace period.
func TestProxyGrace(t *testing.T) {
	for _, tt := range []struct{ grace, took, want time.Duration }{
		{10 * time.Second, 4 * time.Second, 6 * time.Second},
		{10 * time.Second, 10 * time.Second, minOperatorGrace},
		{0, 0, minOperatorGrace},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := new(Proxy)
			p.config.Shutdown.Grace = tt.grace
			ctx, end := context.WithCancel(t.Context())
			require.Equal(t, tt.grace, p.grace(ctx)(), "before the shutdown")
			remaining := p.grace(ctx)
			end()
			synctest.Wait()
			time.Sleep(tt.took)
			require.Equal(t, tt.want, remaining())
		})
	}
}
