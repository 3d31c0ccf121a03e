package resolve_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func ExampleFallback() {
	old, _ := static.Endpoints("192.0.2.1:80")
	now, _ := static.Endpoints("10.0.0.1:80", "10.0.0.2:80")
	cluster := static.New(nil)
	outside := static.New(map[string][]resolve.Endpoint{"web": old})
	for update := range resolve.Fallback(cluster, outside).Resolve(context.Background(), "web") {
		fmt.Println(update.Kind, len(update.Endpoints))
		if len(update.Endpoints) == 2 {
			break
		}
		cluster.Set("web", now...)
	}
	// Output:
	// replace 1
	// replace 2
}
