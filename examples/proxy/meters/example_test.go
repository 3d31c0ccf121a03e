package meters_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/httplayer"
)

// A stack that counts its requests, and the metrics that Prometheus scrapes.
func ExampleMeters_Endpoint() {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer app.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	m := meters.New(meters.Config{})
	svc := httplayer.NewStack().
		With("metrics", m.Endpoint(ctx, meters.Outbound, meters.Labels{"authority": "web.example:80"})).
		Service(httplayer.NewEndpoint(ctx, app.Listener.Addr().String()))

	client := &http.Client{Transport: httplayer.RoundTripper(svc)}
	rsp, err := client.Get(app.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.Copy(io.Discard, rsp.Body)
	_ = rsp.Body.Close()

	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "request_total") || strings.HasPrefix(line, "response_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// request_total{authority="web.example:80",direction="outbound"} 1
	// response_total{authority="web.example:80",classification="success",direction="outbound",status_code="200"} 1
}
