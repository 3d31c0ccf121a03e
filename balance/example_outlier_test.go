package balance_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

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
	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), "web", broken,
		balance.WithPolicy[string](balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3}}))
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
