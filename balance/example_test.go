package balance_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"runtime"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
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

	svc := balance.Resolve(ctx, fixed("10.0.0.1:80"), balance.Config{Target: "web.default:80"}, hello)
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
	svc := balance.New(ctx, balance.Config{Target: "old-name"}, changes)
	elsewhere := balance.Resolve(ctx, fixed("10.9.9.9:80"), balance.Config{Target: "fallback"}, hello)
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
	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80"), balance.Config{Target: "web"}, limited)
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

// Requests of one user go to one endpoint, because it has them in its cache.
func ExampleConsistentHash() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), balance.Config{
		Target: "web", Policy: balance.Policy{Picker: balance.ConsistentHash(1.25)},
	}, hello)
	ready(svc, 3)
	for _, user := range []string{"alice", "bob", "carol", "dave", "alice", "bob"} {
		key := fnv.New64a()
		_, _ = key.Write([]byte(user))
		fmt.Println(svc.Call(layer.WithAffinity(ctx, key.Sum64()), user))
	}
	// Output:
	// hello alice from 10.0.0.3:80 <nil>
	// hello bob from 10.0.0.2:80 <nil>
	// hello carol from 10.0.0.1:80 <nil>
	// hello dave from 10.0.0.3:80 <nil>
	// hello alice from 10.0.0.3:80 <nil>
	// hello bob from 10.0.0.2:80 <nil>
}

// One of three endpoints fails. After three failures in a row it is ejected. Snapshot
// returns the cause.
func ExampleOutlierDetection() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	broken := func(ctx context.Context, t discover.Target) layer.Service[string, string] {
		if t.Endpoint.Addr.Addr().String() == "10.0.0.2" {
			return layer.Func[string, string](func(context.Context, string) (string, error) {
				return "", errors.New("internal error")
			})
		}
		return hello(ctx, t)
	}
	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), balance.Config{Target: "web", Policy: balance.Policy{
		Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3},
	}}, broken)
	ready(svc, 3)

	failed := 0
	for range 100 {
		if _, err := svc.Call(ctx, "world"); err != nil {
			failed++
		}
	}
	fmt.Println(failed, "of 100 failed")
	for _, e := range svc.Snapshot() {
		fmt.Println(e.ID.Addr, e.State)
		if why := new(balance.EjectedError); errors.As(e.Reason, &why) {
			fmt.Println("  after", why.Cause)
		}
	}
	// Output:
	// 3 of 100 failed
	// 10.0.0.1:80 ready
	// 10.0.0.2:80 ejected
	//   after 3 failures in a row
	// 10.0.0.3:80 ready
}

// A second set of endpoints is the backup of the first one.
func ExampleBalancer_priorities() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	local, _ := static.Endpoints("10.0.0.1:80", "10.0.0.2:80")
	remote, _ := static.Endpoints("10.9.0.1:80")
	both := resolve.Merge(
		static.New(map[string][]resolve.Endpoint{"web": local}),
		resolve.WithPriority(static.New(map[string][]resolve.Endpoint{"web": remote}), 1),
	)
	web := balance.Resolve(ctx, both, balance.Config{Target: "web"}, func(_ context.Context, t discover.Target) layer.Service[string, string] {
		return layer.Func[string, string](func(context.Context, string) (string, error) {
			return fmt.Sprint("priority ", t.Endpoint.Priority), nil
		})
	})
	if web.Ready(ctx) == nil {
		fmt.Println(web.Call(ctx, "/"))
	}
	// Output: priority 0 <nil>
}

// The policy of a running balancer changes in place.
func ExampleBalancer_SetPolicy() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := balance.New(ctx, balance.Config{Target: "web"}, func(func(discover.Change[int, int]) bool) {})
	fmt.Println(web.SetPolicy(balance.Policy{Cost: balance.LeastRequest}))
	fmt.Println(web.SetPolicy(balance.Policy{Decay: 1}))
	// Output:
	// <nil>
	// balance: policy: Decay is 1ns, want 0 for the default, or at least 1ms
}
