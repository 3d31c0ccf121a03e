package httplayer_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// A client: an http.Client with the layers that a call over a network needs. One budget
// limits the retries and hedges together, and the hedge also has a small one of its own. Requests wait only in the queue. Each endpoint
// has its own limit, so that the balancer uses another endpoint while one is full. All
// layers use the same classification, and the balancer also uses it to send fewer requests
// to an endpoint that fails. A circuit breaker for each endpoint is not used, because one
// broken route could open all of them.
func Example_client() {
	srv := hello()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // the balancer, its endpoints and their connections end with it

	const target = "web.default:80"
	endpoints, err := static.Endpoints(srv.Listener.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	resolver := static.New(map[string][]resolve.Endpoint{target: endpoints})
	budget := layer.NewBudget(10*time.Second, 0.2, 10)
	endpoint := func(ctx context.Context, t discover.Target) httplayer.Service {
		return httplayer.NewStack().WithTarget(t.Name).
			Limit(64).
			Service(httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String()))
	}
	web := httplayer.NewStack().WithTarget(target).
		Timeout(10*time.Second).
		Retry(httplayer.RetryPolicy{Budget: budget, AttemptTimeout: 2 * time.Second}).
		Queue(1000, 3*time.Second).
		Hedge(httplayer.HedgePolicy{Budget: budget}).
		DeadlineToRequest(httplayer.DeadlineToHeader("Request-Timeout"), 5*time.Millisecond).
		Service(balance.Resolve(ctx, resolver, balance.Config{Target: target}, endpoint))

	client := &http.Client{Transport: httplayer.RoundTripper(web)}
	rsp, err := client.Get("http://web.default/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	fmt.Println(rsp.Status, string(body), err)
	fmt.Print(outline(layer.Describe(web)))
	// Output:
	// 200 OK hello from web.default/ <nil>
	// timeout
	// retry
	// queue
	// hedge
	// deadline_out
	// balance
	//   endpoint
	//   limit
	//   endpoint
}

// A gateway: each host has its own stack. The stack is made for the first request and
// removed after five minutes without requests. Each client address may send a hundred
// requests per second. Requests of low priority are rejected first. Hosts must be on a
// list, because a client could otherwise reach every host that this machine can reach. All
// requests to a host that fails are rejected for a while.
func Example_gateway() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	srv := hello()
	defer srv.Close()
	addresses := map[string]string{"shop.example": srv.Listener.Addr().String()}
	host := func(ctx context.Context, host string) httplayer.Service {
		return httplayer.NewStack().WithTarget(host).
			Retry(httplayer.RetryPolicy{}).
			Queue(1000, time.Second).
			Breaker(layer.BreakerPolicy{}).
			AdaptiveLimit(layer.AdaptivePolicy{}).
			Service(httplayer.NewEndpoint(ctx, addresses[host]))
	}
	routes := layer.NewCache(ctx, host, layer.CachePolicy{IdleTimeout: 5 * time.Minute, Capacity: 1000}, layer.WithCompletion(httplayer.Completion))
	hostOf := func(r *http.Request) (string, error) {
		host := strings.ToLower((&url.URL{Host: r.Host}).Hostname()) // without the port
		if _, ok := addresses[host]; !ok {
			return "", layer.ErrNoRoute
		}
		return host, nil
	}
	client := func(r *http.Request) netip.Addr { return httplayer.HTTP{}.Source(r).Addr() } // of its ports together

	drainer := layer.NewDrainer() // server.Shutdown(ctx) and then drainer.Drain(ctx) on the way out
	gateway := httplayer.NewStack().
		Drain(drainer).
		Timeout(time.Minute).
		IdleTimeout(10*time.Second).
		With("rate", layer.RateLimitBy[netip.Addr, *http.Request, *http.Response](client, 100, 20, 10_000)).
		Shed(layer.ShedPolicy{}).
		Limit(10_000).
		Service(routes.Router(hostOf))

	// Clients receive a status, and no addresses of endpoints.
	handler := httplayer.Handler(gateway)
	for _, asked := range []string{"http://shop.example/greeting", "http://Shop.example:80/greeting", "http://169.254.169.254/"} {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, asked, http.NoBody))
		fmt.Println(rec.Code, asked)
	}
	fmt.Print(outline(layer.Describe(gateway)))
	// Output:
	// 200 http://shop.example/greeting
	// 200 http://Shop.example:80/greeting
	// 404 http://169.254.169.254/
	// drain
	// timeout
	// idle_timeout
	// rate
	// shed
	// limit
	// router
	//   route
	//   retry
	//   queue
	//   breaker
	//   adaptive
	//   endpoint
}

// A server: layers in front of a mux. The deadline of the caller applies, so that the
// server does not work on requests that the caller has given up.
func Example_server() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s", r.PathValue("name"))
	})
	drainer := layer.NewDrainer()
	stack := httplayer.NewStack().
		Drain(drainer).
		DeadlineFromRequest(httplayer.DeadlineFromHeader("Request-Timeout")).
		Timeout(30 * time.Second).
		Shed(layer.ShedPolicy{}).
		AdaptiveLimit(layer.AdaptivePolicy{})
	server := httplayer.Middleware(stack.Layer())(mux)

	rec := httptest.NewRecorder()
	server.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/hello/ann", http.NoBody))
	fmt.Println(rec.Code, rec.Body)
	fmt.Print(outline(server.(layer.Describer).Describe()))
	// Output:
	// 200 hello, ann
	// drain
	// deadline_in
	// timeout
	// shed
	// adaptive
	// handler
}

// outline is the tree of a stack without its state, which changes from one
// moment to the next: print the Node itself to see all of it.
func outline(n layer.Node) string { return outlined(n, "") }

func outlined(n layer.Node, indent string) string {
	text := indent + n.Name + "\n"
	for _, child := range n.Children {
		text += outlined(child, indent+"  ")
	}
	if n.Next != nil {
		text += outlined(*n.Next, indent)
	}
	return text
}
