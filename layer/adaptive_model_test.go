package layer_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// The limit may change in any way. The count of requests in flight is always exact. A
// request is admitted if and only if fewer are in flight than the limit.
func TestAdaptiveLimitModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSlotsSteps(rt)
		var problem string
		synctest.Test(t, func(t *testing.T) {
			policy := layer.AdaptivePolicy{Min: 2, Max: 12, Initial: 4, Window: time.Millisecond}
			m := &slotsModel{t: t, svc: layer.AdaptiveLimit[slotsStep, *response](policy)(slotsLeaf)}
			m.admits = func(int) bool { return int64(len(m.open)) < limitNow(m.svc) }
			m.check = func() string {
				if n := inFlight(m.svc); n != int64(len(m.open)) {
					return fmt.Sprintf("%d are in flight, it says %d", len(m.open), n)
				}
				if n := limitNow(m.svc); n < 2 || n > 12 {
					return fmt.Sprintf("the limit is %d", n)
				}
				return ""
			}
			problem = m.run(steps)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}
