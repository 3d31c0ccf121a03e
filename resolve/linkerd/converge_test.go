package linkerd

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// garble returns a way to send messages of which every tenth is lost, doubled,
// or sent after the one that follows it.
func garble(how string) func(*destination.Update) []*destination.Update {
	n := 0
	var kept []*destination.Update
	return func(m *destination.Update) []*destination.Update {
		n++
		switch {
		case n%10 != 0:
			out := append([]*destination.Update{m}, kept...)
			kept = nil
			return out
		case how == "doubled":
			return []*destination.Update{m, m}
		case how == "reordered":
			kept = []*destination.Update{m}
		}
		return nil
	}
}

// members are the endpoints that a balancer has.
type members struct {
	mu   sync.Mutex
	live map[netip.AddrPort]int
}

func (m *members) add(at netip.AddrPort, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live[at] += n; m.live[at] == 0 {
		delete(m.live, at)
	}
}

func (m *members) serve(ctx context.Context, t discover.Target) layer.Service[string, string] {
	at := t.Endpoint.Addr
	m.add(at, 1)
	context.AfterFunc(ctx, func() { m.add(at, -1) })
	return layer.Func[string, string](func(context.Context, string) (string, error) { return "", nil })
}

func (m *members) sorted() []netip.AddrPort {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.live), netip.AddrPort.Compare)
}

// Row 9 of the reliability tests: after any fault of every tenth message the balancer has
// the right endpoints once the stream was reopened.
func TestConverges(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"lost", "doubled", "reordered"} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(how, ", seed ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testConverges(t, how, rand.New(rand.NewPCG(seed, 0))) })
			})
		}
	}
}

func testConverges(t *testing.T, how string, rnd *rand.Rand) {
	const refresh = time.Minute
	var m inMemory
	c := controller{garble: garble(how)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m.start(t, c.get)
	r := New(m.connect(t), steady, WithStreamLimits(Limits{Lifetime: refresh}))
	have := members{live: map[netip.AddrPort]int{}}
	_ = balance.Resolve(ctx, r, balance.Config{Target: "web"}, have.serve)

	drifted := 0
	for range 10 {
		for range 200 { // changes, faster than the stream is renewed
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(50))}), 80)
			u := resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{at}}
			if rnd.IntN(2) == 0 {
				u = resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{{ID: resolve.ID{Addr: at}}}}
			}
			c.tell("web", u)
			time.Sleep(100 * time.Millisecond)
		}
		var truth []netip.AddrPort
		c.mu.Lock()
		for _, e := range c.target("web").known.Endpoints() {
			truth = append(truth, e.Addr)
		}
		c.mu.Unlock()
		known := have.sorted()
		c.mu.Lock()
		connected := len(c.target("web").feeds) > 0 // and not between two streams
		c.mu.Unlock()
		if connected && !slices.Equal(truth, known) {
			drifted++
		}
		time.Sleep(refresh + refresh/10 + time.Second) // and the back-off
		require.Equal(t, truth, have.sorted())
	}
	switch how {
	case "lost":
		assert.Positive(t, drifted, "what was lost was missed meanwhile")
	case "doubled":
		assert.Zero(t, drifted, "what comes twice is known once")
	}
}
