package httplayer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A server limits its requests, but answers the health checks of Kubernetes also under overload.
func Example_healthExempt() {
	limit := httplayer.NewStack().Limit(0).Layer() // as if all slots were in use
	limited := func(r *http.Request) bool { return r.URL.Path != "/healthz" }
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	handler := httplayer.Middleware(layer.Only(limited, limit))(mux)

	for _, path := range []string{"/healthz", "/work"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /healthz 200
	// /work 503
}
