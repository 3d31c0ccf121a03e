package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestHedgeExplains(t *testing.T) {
	for want, perSecond := range map[string]int{
		"hedge      target=web:80 after=100ms budget=9\n":                   1,
		"hedge      target=web:80 after=100ms skipped=no budget budget=0\n": -1,
	} {
		synctest.Test(t, func(t *testing.T) {
			budget := layer.NewBudget(0, -1, perSecond)
			policy := layer.HedgePolicy[int]{Budget: budget, MinDelay: 100 * time.Millisecond, MaxDelay: 100 * time.Millisecond}
			svc := layer.Hedge(policy, layer.WithTarget[int]("web:80"))(layer.Func[int, int](
				func(ctx context.Context, req int) (int, error) {
					select {
					case <-ctx.Done():
						return 0, ctx.Err()
					case <-time.After(time.Second):
						return req, nil
					}
				}))
			ctx, why := layer.Explain(t.Context())
			_, err := svc.Call(ctx, 1)
			require.NoError(t, err)
			assert.Equal(t, want, why.String())
		})
	}
}
