package profiles_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// The first route with a condition that holds is the route of the request. A request for an
// explanation lists why the routes before it do not match.
func ExampleMatch() {
	var source profiles.Static
	source.Set("books:80", &profiles.Profile{Routes: []profiles.Route{
		{Name: "canary", Match: profiles.All{
			profiles.PathPrefix("/books"),
			profiles.Header{Name: "x-canary", Value: profiles.AnyValue{}},
		}},
		{Name: "search", Match: profiles.All{
			profiles.Path("/books"),
			profiles.Query{Name: "q", Value: profiles.AnyValue{}},
		}},
		{Name: "orders", Match: profiles.GRPC{Service: "orders.v1.Orders"}},
		{Name: "author", Match: profiles.Path("/books/[^/]+/author")},
	}})

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	config := profiles.Config{Target: "books:80", Source: &source, InitialWait: time.Minute}
	books := profiles.New(ctx, config, access{}, func(string) service {
		return handler(func(context.Context, request) (*reply, error) { return &reply{status: 200}, nil })
	})

	asked, why := layer.Explain(ctx)
	_, _ = books.Call(asked, request{method: "GET", path: "/books/7/author"})
	fmt.Print(why)
	// Output:
	// profiles   target=books:80 route=author
	//   route      route=canary failed=header "X-Canary" is present
	//   route      route=search failed=path "/books"
	//   route      route=orders failed=gRPC service "orders.v1.Orders", method "*"
}
