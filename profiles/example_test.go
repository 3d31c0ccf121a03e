package profiles_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// A router sends a tenth of the requests to the new version, and passes the route of a
// request to the layers below. A function is used here in place of a balancer.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var source profiles.Static
	source.Set("web:80", &profiles.Profile{
		Routes: []profiles.Route{{
			Name:  "GET /books/{id}",
			Match: profiles.All{profiles.Method("GET"), profiles.Path("/books/[^/]*")},
		}},
		Targets: []profiles.Target{
			{Authority: "web-v1:80", Weight: 90},
			{Authority: "web-v2:80", Weight: 10},
		},
	})
	shares := make(map[string]int)
	web := profiles.New(ctx, profiles.Config{Target: "web:80", Source: &source, InitialWait: time.Minute}, access{},
		func(authority string) layer.Service[request, *reply] {
			return layer.Func[request, *reply](func(ctx context.Context, _ request) (*reply, error) {
				shares[authority]++
				return &reply{status: 200, route: layer.RouteFromContext(ctx)}, nil
			})
		},
	)
	for range 1000 {
		rsp, err := web.Call(ctx, request{method: "GET", path: "/books/7"})
		if err != nil || rsp.route.Name != "GET /books/{id}" {
			fmt.Println(rsp, err)
		}
	}
	fmt.Println("most of them old:", shares["web-v1:80"] > 800)
	fmt.Println("some of them new:", shares["web-v2:80"] > 30)
	// Output:
	// most of them old: true
	// some of them new: true
}

// A stack of its own for each route, made from the fields of the route.
func ExampleWithPerRoute() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var source profiles.Static
	source.Set("web:80", &profiles.Profile{Routes: []profiles.Route{
		{Name: "search", Match: profiles.Path("/search"), Timeout: 10 * time.Millisecond},
		{Name: "report", Match: profiles.Path("/report")},
	}})

	type deadline = layer.Func[request, *reply]
	stack := func(route profiles.Route, next layer.Service[request, *reply]) layer.Service[request, *reply] {
		if route.Timeout == 0 {
			return next
		}
		return deadline(func(ctx context.Context, req request) (*reply, error) {
			ctx, cancel := context.WithTimeout(ctx, route.Timeout)
			defer cancel() // these replies have no body that is read later
			return next.Call(ctx, req)
		})
	}
	slow := func(string) layer.Service[request, *reply] {
		return layer.Func[request, *reply](func(ctx context.Context, _ request) (*reply, error) {
			if _, limited := ctx.Deadline(); limited { // it takes longer than the callers wait
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &reply{status: 200}, nil
		})
	}
	web := profiles.New(ctx, profiles.Config{Target: "web:80", Source: &source, InitialWait: time.Minute}, access{}, slow,
		profiles.WithPerRoute(stack))

	_, err := web.Call(ctx, request{method: "GET", path: "/search"})
	fmt.Println("search ran out of time:", errors.Is(err, context.DeadlineExceeded))
	rsp, err := web.Call(ctx, request{method: "GET", path: "/report"})
	fmt.Println("report:", rsp.status, err)
	// Output:
	// search ran out of time: true
	// report: 200 <nil>
}

// A route that is retryable sends a failed request again, within the profile's
// budget.
func ExampleWithRouteLayers() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var source profiles.Static
	source.Set("web:80", &profiles.Profile{
		Routes: []profiles.Route{{
			Name: "list", Match: profiles.Path("/list"), Retry: &profiles.Retry{}, Timeout: 10 * time.Second,
		}},
		RetryBudget: &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
	})
	tries := 0
	flaky := func(string) layer.Service[request, *reply] {
		return layer.Func[request, *reply](func(context.Context, request) (*reply, error) {
			if tries++; tries < 3 {
				return &reply{status: 503}, nil
			}
			return &reply{status: 200}, nil
		})
	}
	// For HTTP: profiles.WithRouteLayers(httplayer.HTTP{}).
	web := profiles.New(ctx, profiles.Config{Target: "web:80", Source: &source, InitialWait: time.Minute}, access{}, flaky,
		profiles.WithRouteLayers(resend{}))
	rsp, _ := web.Call(ctx, request{method: "GET", path: "/list"})
	fmt.Println(rsp.status, "after", tries, "attempts")
	// Output:
	// 200 after 3 attempts
}

// A profile that changes takes the next request along.
func ExampleStatic() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var source profiles.Static
	for p := range source.Watch(ctx, "web:80") {
		fmt.Println(p.Targets)
		if p.Targets != nil {
			break
		}
		source.Set("web:80", &profiles.Profile{Targets: []profiles.Target{{Authority: "web-v2:80", Weight: 1}}})
	}
	// Output:
	// []
	// [{web-v2:80 1}]
}
