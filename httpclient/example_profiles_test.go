package httpclient_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/profiles/file"
)

// routes are those of the requests to web.test. Failed requests below /search are retried. The name of
// the only backend is its address.
const routes = `
target: web.test
routes:
- match: {pathPrefix: /search}
  timeout: 2s
  retry: true
  responseHeader: {set: {x-route: search}}
split: {"%s": 1}
`

// A client follows the routes in a file. A change of the file takes effect with the next request.
func ExampleWithProfiles() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if failed = !failed; failed {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	dir, err := os.MkdirTemp("", "routes")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, routes, server.Listener.Addr()), 0o600); err != nil {
		panic(err)
	}

	client := &http.Client{Transport: httpclient.New(ctx, "web.test", httpclient.WithProfiles(file.New(path)))}
	rsp, err := client.Get("http://web.test/search?q=tower")
	if err != nil {
		panic(err)
	}
	defer rsp.Body.Close()
	fmt.Println(rsp.StatusCode, "by route", rsp.Header.Get("X-Route"))
	// Output: 200 by route search
}
