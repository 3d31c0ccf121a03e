package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/gotower/gotower/resolve"
)

func endpoint(addr string) resolve.Endpoint {
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(addr)}}
}

func ExampleSet() {
	var set resolve.Set
	for _, update := range []resolve.Update{
		{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{endpoint("10.0.0.2:80"), endpoint("10.0.0.1:80")}},
		{Kind: resolve.Add, Endpoints: []resolve.Endpoint{endpoint("10.0.0.1:80")}}, // redundant
		{Kind: resolve.Remove, Removed: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}},
		{Kind: resolve.DoesNotExist},
	} {
		diff := set.Apply(update)
		fmt.Printf("%v: added %d, removed %d, %v\n", update.Kind, len(diff.Added), len(diff.Removed), set.State())
	}
	// Output:
	// replace: added 2, removed 0, exists
	// add: added 0, removed 0, exists
	// remove: added 0, removed 1, exists
	// does not exist: added 0, removed 1, does not exist
}

// A source with failing streams becomes a source that continues. Its last set stays until
// it is back, and is then replaced as a whole.
func ExampleReconnect() {
	answers := [][]resolve.Endpoint{
		{endpoint("10.0.0.1:80"), endpoint("10.0.0.2:80")},
		{endpoint("10.0.0.2:80")},
	}
	asked := 0
	source := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if asked == len(answers) {
				yield(resolve.Update{}, fmt.Errorf("zone deleted: %w", resolve.ErrUnresolvable))
				return
			}
			u := resolve.Update{Kind: resolve.Add, Endpoints: answers[asked]}
			asked++
			if yield(u, nil) {
				yield(resolve.Update{}, errors.New("connection reset"))
			}
		}
	})

	var set resolve.Set
	r := resolve.Reconnect(source, resolve.Backoff{Min: time.Millisecond, Max: time.Second})
	for update, err := range r.Resolve(context.Background(), "web.default:80") {
		if err != nil {
			fmt.Printf("%v; still %d\n", err, set.Len())
			continue
		}
		set.Apply(update)
		fmt.Printf("%v: %d\n", update.Kind, set.Len())
	}
	// Output:
	// replace: 2
	// connection reset; still 2
	// replace: 1
	// connection reset; still 1
	// zone deleted: not a name that this resolver resolves; still 1
}
