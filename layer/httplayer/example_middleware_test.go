package httplayer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A server's stack in front of a mux.
func ExampleMiddleware() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s", r.PathValue("name"))
	})
	drainer := layer.NewDrainer()
	stack := httplayer.NewStack().
		Drain(drainer).
		Timeout(5*time.Second).
		RateLimit(0.001, 1).
		Limit(100)
	server := httptest.NewServer(httplayer.Middleware(stack.Layer())(mux))
	defer server.Close()

	for range 2 {
		rsp, err := http.Get(server.URL + "/hello/you")
		if err != nil {
			fmt.Println(err)
			return
		}
		rsp.Body.Close()
		fmt.Println(rsp.StatusCode, len(rsp.Header["Retry-After"]))
	}
	// Output:
	// 200 0
	// 429 1
}
