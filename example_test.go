package gotower_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// An http.Client that is balanced over the replicas of a service.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello from "+r.Host)
	}))
	defer replica.Close()
	endpoints, err := static.Endpoints(replica.Listener.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	resolver := static.New(map[string][]resolve.Endpoint{"web.default:80": endpoints})

	web := httplayer.NewStack().WithTarget("web.default:80").
		Timeout(5*time.Second).
		Retry(httplayer.RetryPolicy{}).
		Queue(1000, 3*time.Second).
		Service(balance.Resolve(ctx, resolver, balance.Config{Target: "web.default:80"},
			func(ctx context.Context, t discover.Target) httplayer.Service {
				return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
			}))

	client := &http.Client{Transport: httplayer.RoundTripper(web)}
	rsp, err := client.Get("http://web.default/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	fmt.Println(rsp.Status, string(body), err)
	// Output:
	// 200 OK hello from web.default <nil>
}
