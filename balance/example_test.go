package balance_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// fixed resolves every target to the same addresses.
func fixed(addrs ...string) resolve.Resolver {
	update := resolve.Update{Kind: resolve.Replace}
	for _, a := range addrs {
		update.Endpoints = append(update.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(a)}})
	}
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(update, nil)
			<-ctx.Done()
		}
	})
}

// hello is an endpoint's service. It would be a client of the endpoint's
// address that is closed when ctx ends.
func hello(ctx context.Context, t discover.Target) layer.Service[string, string] {
	return layer.Func[string, string](func(_ context.Context, req string) (string, error) {
		return "hello " + req + " from " + t.Endpoint.Addr.String(), nil
	})
}

// ready waits until n endpoints are: Ready is content with one.
func ready(svc *balance.Balancer[string, string], n int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		are := 0
		for _, e := range svc.Snapshot() {
			if e.State == "ready" {
				are++
			}
		}
		if are >= n {
			return
		}
	}
	panic("not ready after a minute")
}

func ExampleResolve() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	svc := balance.Resolve(ctx, fixed("10.0.0.1:80"), "web.default:80", hello)
	if err := svc.Ready(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(svc.Call(ctx, "world"))
	// Output: hello world from 10.0.0.1:80 <nil>
}

// A rejection has a reason, so that a caller can act on it.
func ExampleBalancer_Call() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	changes := func(yield func(discover.Change[string, string]) bool) {
		yield(discover.Change[string, string]{State: resolve.StateDoesNotExist})
		<-ctx.Done()
	}
	svc := balance.New(ctx, "old-name", changes)
	elsewhere := balance.Resolve(ctx, fixed("10.9.9.9:80"), "fallback", hello)
	_ = elsewhere.Ready(ctx)

	rsp, err := svc.Call(ctx, "world")
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		if !errors.Is(err, layer.ErrNotReady) || errors.Is(err, discover.ErrDoesNotExist) {
			break // else it has not been resolved yet
		}
		rsp, err = svc.Call(ctx, "world")
	}
	fmt.Println(err)
	if errors.Is(err, discover.ErrDoesNotExist) {
		rsp, err = elsewhere.Call(ctx, "world")
	}
	fmt.Println(rsp, err)
	// Output:
	// balance old-name: not ready: the target does not exist
	// hello world from 10.9.9.9:80 <nil>
}

// The live state, as text; it marshals to JSON as well.
func ExampleBalancer_Describe() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	limited := func(ctx context.Context, t discover.Target) layer.Service[string, string] {
		return layer.NewStack[string, string]().Limit(8).Service(hello(ctx, t))
	}
	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80"), "web", limited)
	ready(svc, 2)
	d := layer.Describe(svc)
	fmt.Println(d.Name, d.State.Get("target"), d.State.Get("endpoints"))
	for _, e := range d.Children {
		fmt.Println(e.Name, e.State.Get("addr"), e.State.Get("state"), e.Next.Name)
	}
	// Output:
	// balance web 2
	// endpoint 10.0.0.1:80 ready limit
	// endpoint 10.0.0.2:80 ready limit
}
