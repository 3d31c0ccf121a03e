package resolve_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func ExampleRegistry() {
	web, _ := static.Endpoints("10.0.0.1:80")
	registry := resolve.NewRegistry()
	if err := registry.Register("static", static.New(map[string][]resolve.Endpoint{"web:80": web})); err != nil {
		fmt.Println(err)
		return
	}
	for update := range registry.Resolve(context.Background(), "static://web:80") {
		fmt.Println(update.Kind, len(update.Endpoints))
		break // it would wait for a change
	}
	for _, err := range registry.Resolve(context.Background(), "dns://web:80") {
		fmt.Println(err)
	}
	// Output:
	// replace 1
	// resolve "dns://web:80": unknown scheme "dns"; known are static://: not a name that this resolver resolves
}
