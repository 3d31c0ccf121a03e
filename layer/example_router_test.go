package layer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

// The routes are made at their first use, and dropped when they have been idle for a
// while.
func ExampleCache_Router() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	route := func(_ context.Context, host string) layer.Service[string, string] {
		answer := layer.Func[string, string](func(_ context.Context, url string) (string, error) {
			return url + " by " + host, nil
		})
		return layer.NewStack[string, string]().WithTarget(host).Limit(8).Service(answer)
	}
	hostOf := func(url string) (string, error) {
		host, _, ok := strings.Cut(url, "/")
		if !ok {
			return "", fmt.Errorf("%q names no host", url)
		}
		return host, nil
	}
	svc := layer.NewCache(ctx, route, layer.CachePolicy{}).Router(hostOf)

	for _, url := range []string{"web/index", "api/users", "web/about", "elsewhere"} {
		fmt.Println(svc.Call(ctx, url))
	}
	fmt.Print(layer.Describe(svc))
	// Output:
	// web/index by web <nil>
	// api/users by api <nil>
	// web/about by web <nil>
	//  router: no route: "elsewhere" names no host
	// router     keys=2 capacity=10000 idle=1m0s rejected=0
	//   route      key=api open=0
	//   limit      in_flight=0 max=8
	//   layer.Func
	//   route      key=web open=0
	//   limit      in_flight=0 max=8
	//   layer.Func
}
