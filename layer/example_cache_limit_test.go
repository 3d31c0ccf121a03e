package layer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

// A limit of one request in flight for each tenant.
func ExampleCache_limits() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tenant := func(req string) (string, error) {
		name, _, _ := strings.Cut(req, "/")
		return name, nil
	}
	var svc layer.Service[string, string]
	inner := layer.Func[string, string](func(ctx context.Context, req string) (string, error) {
		if req == "ann/report" { // asks for more while it is being served
			_, err := svc.Call(ctx, "ann/picture")
			fmt.Println(err)
			fmt.Println(svc.Call(ctx, "bob/picture"))
		}
		return "here is " + req, nil
	})
	limits := layer.NewCache(ctx, func(context.Context, string) layer.Service[string, string] {
		return layer.Limit[string, string](1)(inner)
	}, layer.CachePolicy{})
	svc = limits.Router(tenant)
	fmt.Println(svc.Call(ctx, "ann/report"))
	// Output:
	// limit: not ready: 1 of 1 in flight
	// here is bob/picture <nil>
	// here is ann/report <nil>
}
