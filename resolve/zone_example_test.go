package resolve_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func in(zone, addr string) resolve.Endpoint {
	e := endpoint(addr)
	e.Labels = map[string]string{"zone": zone}
	return e
}

func ExampleZone() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	source := static.New(map[string][]resolve.Endpoint{"web": {
		in("a", "10.0.1.1:80"), in("a", "10.0.1.2:80"), in("b", "10.0.2.3:80"),
	}})
	steps := [][]resolve.Endpoint{
		{in("a", "10.0.1.1:80"), in("b", "10.0.2.3:80")},                         // one is too few
		{in("a", "10.0.1.1:80"), in("a", "10.0.1.2:80"), in("b", "10.0.2.3:80")}, // two are enough, when they stay
	}
	ours := resolve.Zone(source, "a", resolve.ZonePolicy{StabilizationWindow: 10 * time.Millisecond})
	var known resolve.Set
	for update := range ours.Resolve(ctx, "web") {
		known.Apply(update)
		fmt.Print(update.Kind, ":")
		for _, e := range known.Endpoints() {
			fmt.Print(" ", e.Addr)
		}
		fmt.Println()
		if len(steps) > 0 {
			source.Set("web", steps[0]...)
			steps = steps[1:]
		} else if known.Len() == 2 {
			break
		}
	}
	// Output:
	// replace: 10.0.1.1:80 10.0.1.2:80
	// replace: 10.0.1.1:80 10.0.2.3:80
	// add: 10.0.1.1:80 10.0.1.2:80 10.0.2.3:80
	// remove: 10.0.1.1:80 10.0.1.2:80
}

// That the endpoints of the zone are there but do not work is for a Switch over
// two balancers to see.
func ExampleZone_spillOver() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	source := static.New(map[string][]resolve.Endpoint{"web": {
		in("a", "10.0.1.1:80"), in("a", "10.0.1.2:80"), in("b", "10.0.2.3:80"),
	}})
	mk := func(_ context.Context, t discover.Target) layer.Service[string, string] {
		if t.Endpoint.Labels["zone"] == "a" {
			return down{}
		}
		return layer.Func[string, string](func(_ context.Context, req string) (string, error) {
			return "hello " + req + " from " + t.Endpoint.Addr.String(), nil
		})
	}
	near := balance.Resolve(ctx, resolve.Zone(source, "a", resolve.ZonePolicy{}), "web", mk)
	all := balance.Resolve(ctx, source, "web", mk)
	svc := layer.Failover(near, all, 5*time.Millisecond) // some seconds, as a rule

	fmt.Println(svc.Ready(ctx))
	fmt.Println(svc.Call(ctx, "world"))
	// Output:
	// <nil>
	// hello world from 10.0.2.3:80 <nil>
}

// down is an endpoint that does not work.
type down struct{}

func (down) Ready(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (down) Call(context.Context, string) (string, error) { return "", layer.ErrNotReady }
