package linkerd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// Ten of a hundred endpoints change each second, and the controller is away for some
// seconds each minute. Whenever it is reachable, the consumer has its set.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			m   inMemory
			c   controller
			set resolve.Set
		)
		rnd := rand.New(rand.NewPCG(1, 2))
		endpoint := func() resolve.Endpoint {
			e := resolve.Endpoint{ID: resolve.ID{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(150))}), 80),
			}}
			e.Protocol = resolve.Protocol(rnd.IntN(2))
			e.Weight = uint32(rnd.IntN(2))
			return e
		}
		churn := func() {
			for range 5 {
				c.tell("web",
					resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{endpoint()}},
					resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{endpoint().Addr}},
				)
			}
		}
		for range 100 {
			c.tell("web", resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{endpoint()}})
		}
		m.start(t, c.get)
		r := New(m.connect(t), steady)
		go func() {
			for u, err := range r.Resolve(t.Context(), "web") {
				if err == nil {
					set.Apply(u)
				}
			}
		}()
		equal := func(when int) {
			t.Helper()
			synctest.Wait()
			want, got := c.targets["web"].known.Endpoints(), set.Endpoints()
			require.Len(t, got, len(want), "after %d s", when)
			for i := range want {
				require.True(t, want[i].Equal(got[i]), "after %d s: %v is known as %v", when, want[i], got[i])
			}
		}
		equal(0)
		for second := 1; second <= 600; second++ {
			if second%60 == 0 {
				c.interrupt("web", func() {
					for range 5 {
						time.Sleep(time.Second)
						churn()
					}
				})
				time.Sleep(time.Second)
			}
			churn()
			time.Sleep(time.Second)
			equal(second)
		}
	})
}
