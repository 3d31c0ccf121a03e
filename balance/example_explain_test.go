package balance_test

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// zoned resolves every target to one address in each of the zones.
func zoned(zones ...string) resolve.Resolver {
	update := resolve.Update{Kind: resolve.Replace}
	for i, zone := range zones {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80)
		update.Endpoints = append(update.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}, Labels: map[string]string{"zone": zone}})
	}
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(update, nil)
			<-ctx.Done()
		}
	})
}

// Why did this request go there? Of three endpoints, of which nothing is known
// yet and one is in another zone, each counts the request for 1 to 2; here
// chance is a number that is always the same.
func Example_explain() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	svc := balance.Resolve(ctx, zoned("a", "a", "b"), balance.Config{
		Target: "web:80", Policy: balance.Policy{Zone: "a"}, Rand: func() uint64 { return 4 },
	}, hello)
	ready(svc, 3)

	ctx, why := layer.Explain(ctx)
	_, _ = svc.Call(ctx, "world")
	fmt.Print(why)
	// Output:
	// balance    target=web:80 pick=cheapest of up to 24 in an aperture cost=ewma chosen=10.0.0.1:80
	//   endpoint   addr=10.0.0.1:80 result=chosen cost=37.129ms latency=30ms in_flight=0
	//   endpoint   addr=10.0.0.2:80 result=higher cost cost=49.241ms latency=30ms in_flight=0
	//   endpoint   addr=10.0.0.3:80 result=other zone cost=37.129ms latency=30ms in_flight=0 other_zone=true
}
