package kit_test

import (
	"context"
	"fmt"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/kit"
)

func ExampleNew() {
	r := kit.New(func(target string) (sd.Instancer, error) {
		if target != "web" {
			return nil, fmt.Errorf("no service %q: %w", target, resolve.ErrUnresolvable)
		}
		return sd.FixedInstancer{"10.0.0.1:80", "10.0.0.2:80"}, nil // or consul.NewInstancer(…)
	})
	for update := range r.Resolve(context.Background(), "web") {
		fmt.Println(update.Kind, len(update.Endpoints))
		break // it would wait for a change
	}
	for _, err := range r.Resolve(context.Background(), "books") {
		fmt.Println(err)
	}
	// Output:
	// replace 2
	// kit: "books": make an Instancer: no service "books": not a name that this resolver resolves
}
