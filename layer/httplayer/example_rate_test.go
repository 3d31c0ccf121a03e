package httplayer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A rate limit for each API key. The types of the request and the response cannot be inferred.
func Example_rateLimitByKey() {
	apiKey := func(r *http.Request) string { return r.Header.Get("X-Api-Key") }
	front := httplayer.NewStack().
		With("rate_by_key", layer.RateLimitBy[string, *http.Request, *http.Response](apiKey, 0.001, 2, 0)) // 2 requests at once
	books := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "books") })
	gateway := httplayer.Handler(front.Service(httplayer.FromHandler(books)))

	for _, key := range []string{"gold", "gold", "gold", "silver"} {
		req := httptest.NewRequest(http.MethodGet, "/books", http.NoBody)
		req.Header.Set("X-Api-Key", key)
		rsp := httptest.NewRecorder()
		gateway.ServeHTTP(rsp, req)
		fmt.Printf("%s %d %q\n", key, rsp.Code, rsp.Header().Get("Retry-After"))
	}
	// Output:
	// gold 200 ""
	// gold 200 ""
	// gold 429 "1000"
	// silver 200 ""
}
