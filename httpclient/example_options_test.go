package httpclient_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve/static"
)

// request sends a GET request to a new client with the options, and prints the response.
func request(opts ...httpclient.Option) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := httpclient.New(ctx, "web.default", opts...)
	show(&http.Client{Transport: c}, "http://web.default/")
}

// One of three servers always fails, and one does not listen. No request fails.
func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	good, stop := hello("hello")
	defer stop()
	bad := httptest.NewServer(http.NotFoundHandler())
	bad.Close() // it no longer listens
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	defer failing.Close()
	web := httpclient.New(ctx, "web.default", httpclient.WithAddrs(good, bad.Listener.Addr().String(), failing.Listener.Addr().String()))
	c := &http.Client{Transport: web}
	failed := 0
	for range 100 {
		rsp, err := c.Get("http://web.default/")
		if err != nil || rsp.StatusCode != http.StatusOK {
			failed++
			continue
		}
		rsp.Body.Close()
	}
	fmt.Println(failed, "of 100 failed")
	// Output: 0 of 100 failed
}

// Without a queue, a request fails at once while no endpoint is ready.
func ExampleWithQueue() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := httpclient.New(ctx, "web.default", httpclient.WithResolver(static.New(nil)), httpclient.WithQueue(0, 0))
	_, err := (&http.Client{Transport: web}).Get("http://web.default/")
	fmt.Println(errors.Is(err, layer.ErrNotReady))
	// Output: true
}

// The second server is idle while the first one hangs, so a copy of the request is faster.
func ExampleWithHedge() {
	var requests atomic.Int64
	slowOnce := func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "fast")
	}
	first, second := httptest.NewServer(http.HandlerFunc(slowOnce)), httptest.NewServer(http.HandlerFunc(slowOnce))
	defer first.Close()
	defer second.Close()
	request(httpclient.WithAddrs(first.Listener.Addr().String(), second.Listener.Addr().String()),
		httpclient.WithHedge(httplayer.HedgePolicy{MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}))
	// Output: 200 fast
}

// A breaker ends requests to an endpoint after two failures in a row.
func ExampleWithBreaker() {
	var requests atomic.Int64
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer failing.Close()
	good, stop := hello("hello")
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := httpclient.New(ctx, "web.default", httpclient.WithAddrs(failing.Listener.Addr().String(), good),
		httpclient.WithPolicy(balance.Policy{
			Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{MinReady: 0.1},
		}),
		httpclient.WithBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}}))
	c := &http.Client{Transport: web}
	for range 20 {
		if rsp, err := c.Get("http://web.default/"); err == nil {
			rsp.Body.Close()
		}
	}
	fmt.Println(requests.Load() <= 2)
	// Output: true
}

// At most two requests are in flight. The others wait in the queue.
func ExampleWithLimit() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithLimit(2))
	// Output: 200 hello
}

// An endpoint gets at most ten requests at a time. Others get the rest.
func ExampleWithEndpointLimit() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithEndpointLimit(10))
	// Output: 200 hello
}

// A layer of the application adds a token to each request.
func ExampleWithLayer() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Authorization")) }))
	defer s.Close()
	token := httplayer.NewStack().MapRequest(func(r *http.Request) *http.Request {
		r = r.Clone(r.Context()) // a layer must not change a request
		r.Header.Set("Authorization", "Bearer token")
		return r
	})
	request(httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithLayer("token", token.Layer()))
	// Output: 200 Bearer token
}

// timed is a layer for each protocol that has an Editor. It adds a header with the time until the response.
type timed[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	edit layer.Editor[Req, Rsp]
}

func (t timed[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	start := time.Now()
	rsp, err := t.Service.Call(ctx, req)
	if err != nil {
		return rsp, err
	}
	spent := layer.HeaderField{Name: "X-Time-Spent", Value: time.Since(start).String()}
	return t.edit.EditResponse(rsp, layer.HeaderMutation{Set: []layer.HeaderField{spent}}), nil
}

// Timed returns the layer that makes a timed service.
func Timed[Req, Rsp any](edit layer.Editor[Req, Rsp]) layer.Layer[Req, Rsp] {
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] { return timed[Req, Rsp]{next, edit} }
}

// A layer that does not depend on net/http, in an HTTP client.
func Example_genericLayer() {
	addr, stop := hello("hello")
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := httpclient.New(ctx, "web.default", httpclient.WithAddrs(addr), httpclient.WithLayer("timed", Timed(httplayer.HTTP{})))

	rsp, err := (&http.Client{Transport: web}).Get("http://web.default/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	spent, err := time.ParseDuration(rsp.Header.Get("X-Time-Spent"))
	fmt.Println(rsp.StatusCode, spent > 0, err)
	// Output: 200 true <nil>
}

// Each attempt passes a layer of the endpoint.
func ExampleWithEndpointLayer() {
	addr, stop := hello("hello")
	defer stop()
	attempts := httplayer.NewStack().Filter(func(r *http.Request) error {
		fmt.Println("attempt", r.URL.Path)
		return nil
	})
	request(httpclient.WithAddrs(addr), httpclient.WithEndpointLayer(attempts.Layer()))
	// Output:
	// attempt /
	// 200 hello
}

// A rule of the application prefers the endpoint with the fewest requests in flight.
func ExampleWithPolicy() {
	addr, stop := hello("hello")
	defer stop()
	fewest := balance.Custom("fewest", func(_ balance.PickRequest, ready []balance.Candidate) int {
		best := 0
		for i, c := range ready {
			if c.InFlight < ready[best].InFlight && !c.Tried {
				best = i
			}
		}
		return best
	})
	request(httpclient.WithAddrs(addr), httpclient.WithPolicy(balance.Policy{Picker: fewest}))
	// Output: 200 hello
}

// The client connects before the first request.
func ExampleWithPreconnect() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithPreconnect())
	// Output: 200 hello
}

// An endpoint in the same host is reached without TLS.
func ExampleWithEndpointTLS() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithEndpointTLS(func(t discover.Target) *tls.Config {
		if t.Endpoint.Addr.Addr().IsLoopback() {
			return nil
		}
		return &tls.Config{MinVersion: tls.VersionTLS13}
	}))
	// Output: 200 hello
}

// Events tell which requests were rejected, and why.
func ExampleWithEvents() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := httpclient.New(ctx, "web.default", httpclient.WithResolver(static.New(nil)), httpclient.WithQueue(0, 0),
		httpclient.WithEvents(func(e httpclient.Event) {
			if e.Kind == httpclient.Rejected {
				fmt.Println(e.Kind, errors.Is(e.Err, layer.ErrNotReady))
			}
		}))
	_, _ = (&http.Client{Transport: web}).Get("http://web.default/")
	// Output: request rejected true
}

// A logger reports when endpoints are ejected or back, and when a target has none.
func ExampleWithLogger() {
	logged := make(chan string, 10)
	out := slog.NewTextHandler(lineWriter(logged), &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	httpclient.New(ctx, "web.default", httpclient.WithResolver(static.New(nil)), httpclient.WithLogger(slog.New(out)))
	_, _ = io.Copy(os.Stdout, strings.NewReader(<-logged))
	// Output: level=WARN msg="target down" target=web.default error="the target does not exist"
}
