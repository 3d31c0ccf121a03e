package profiles_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// Routes that change forwarded requests, redirect clients, and fail deliberately for a
// while.
func ExampleRoute_changes() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("X-Team"))
	}))
	defer backend.Close()
	var source profiles.Static
	source.Set("web:80", &profiles.Profile{Routes: []profiles.Route{
		{
			Name: "old", Match: profiles.PathPrefix("/v1"),
			Redirect: &profiles.Redirect{Status: http.StatusPermanentRedirect, OldPrefix: "/v1", NewPrefix: "/v2"},
		},
		{
			Name: "experiment", Match: profiles.PathPrefix("/v2/reviews"),
			Faults: []profiles.Fault{{Fraction: 1, Status: http.StatusServiceUnavailable, TTL: 10 * time.Minute}},
		},
		{
			Name: "rest", Match: profiles.All{},
			RequestHeader:  layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Team", Value: "books"}}},
			ResponseHeader: layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Frame-Options", Value: "DENY"}}},
		},
	}})
	config := profiles.Config{Target: "web:80", Source: &source, InitialWait: time.Minute}
	web := profiles.New(ctx, config, httplayer.HTTP{}, func(string) httplayer.Service {
		return httplayer.NewEndpoint(ctx, backend.Listener.Addr().String())
	}, profiles.WithRouteLayers(httplayer.HTTP{}))
	for _, path := range []string{"/v1/books?page=2", "/v2/reviews", "/v2/books"} {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://web"+path, http.NoBody)
		rsp, err := web.Call(ctx, req)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%d %q %q\n", rsp.StatusCode, rsp.Header.Get("Location")+rsp.Header.Get("X-Seen"), rsp.Header.Get("X-Frame-Options"))
		_ = rsp.Body.Close()
	}
	// Output:
	// 308 "http://web/v2/books?page=2" ""
	// 503 "" ""
	// 200 "books" "DENY"
}
