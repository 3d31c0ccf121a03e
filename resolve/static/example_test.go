package static_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func ExampleNew() {
	web, err := static.Endpoints("10.0.0.1:80", "10.0.0.2:80")
	if err != nil {
		fmt.Println(err)
		return
	}
	r := static.New(map[string][]resolve.Endpoint{"web": web})
	for update := range r.Resolve(context.Background(), "web") {
		fmt.Println(update.Kind, len(update.Endpoints))
		break // it would wait for a change
	}
	// Output:
	// replace 2
}

func ExampleResolver_Set() {
	var (
		r   static.Resolver
		set resolve.Set
	)
	more, _ := static.Endpoints("10.0.0.1:80")
	for update := range r.Resolve(context.Background(), "web") {
		set.Apply(update)
		fmt.Println(set.State())
		if set.State() == resolve.StateExists {
			break
		}
		r.Set("web", more...)
	}
	// Output:
	// does not exist
	// exists
}

func ExampleEndpoints() {
	_, err := static.Endpoints("10.0.0.1:80", "10.0.0.2", "localhost:80")
	fmt.Println(err)
	// Output:
	// static: address "10.0.0.2": no port: write 10.0.0.1:80 or [fd00::1]:80
	// static: address "localhost:80": not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80
}
