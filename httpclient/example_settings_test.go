package httpclient_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/instrument/promtower"
	"github.com/gotower/gotower/layer/httplayer"
)

// The only server starts after the request was sent. The request waits for it.
func ExampleWithWaitForReady() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	addr := l.Addr().String()
	l.Close()
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })}
	defer s.Close()
	started := false
	request(httpclient.WithAddrs(addr), httpclient.WithWaitForReady(), httpclient.WithQueue(1000, time.Minute),
		httpclient.WithEvents(func(e httpclient.Event) {
			if e.Kind != httpclient.TargetDown || started {
				return
			}
			started = true
			if l, err := net.Listen("tcp", addr); err == nil {
				go s.Serve(l)
			}
		}))
	// Output: 200 hello
}

// The server has a minute for the headers of a response.
func ExampleWithTimeout() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithTimeout(time.Minute))
	// Output: 200 hello
}

// A request is sent once, whatever happens.
func ExampleWithRetry() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("attempt", r.URL.Path)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer s.Close()
	request(httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithRetry(httplayer.RetryPolicy{MaxAttempts: 1}))
	// Output:
	// attempt /
	// 503
}

// HTTP/2 without TLS, and connections that are replaced after five minutes.
func ExampleWithEndpointOptions() {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	request(httpclient.WithAddrs(s.Listener.Addr().String()),
		httpclient.WithEndpointOptions(httplayer.WithHTTP2(), httplayer.WithMaxConnAge(5*time.Minute)))
	// Output: 200 HTTP/2.0
}

// An endpoint gets requests while its page /healthz answers.
func ExampleWithHealthCheck() {
	addr, stop := hello("hello")
	defer stop()
	request(httpclient.WithAddrs(addr), httpclient.WithHealthCheck(httpclient.CheckHTTP("/healthz"), discover.HealthPolicy{}))
	// Output: 200 hello
}

// The requests of a session go to the same server. A cookie has the session.
func ExampleWithStickySession() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, stop := hello("hello")
	defer stop()
	web := httpclient.New(ctx, "web.default", httpclient.WithAddrs(addr), httpclient.WithStickySession("session"))
	rsp, err := (&http.Client{Transport: web}).Get("http://web.default/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	fmt.Println(rsp.Cookies()[0].Name)
	// Output: session
}

// The metrics of the requests, the layers and the balancer are those of Prometheus.
func ExampleWithMetrics() {
	addr, stop := hello("hello")
	defer stop()
	registry := prometheus.NewRegistry()
	request(httpclient.WithAddrs(addr), httpclient.WithMetrics(promtower.New(registry)))
	families, err := registry.Gather()
	fmt.Println(len(families) > 0, err)
	// Output:
	// 200 hello
	// true <nil>
}

// A program selects the proxy. The environment would select it for NewTransport only.
func ExampleWithProxy() {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) }))
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	request(httpclient.WithProxy(http.ProxyURL(u)))
	// Output: 200 http://web.default/
}

// A client that sends requests to many hosts releases those that it no longer needs after ten seconds.
func ExampleWithIdleHosts() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, stop := hello("hello")
	defer stop()
	show(&http.Client{Transport: httpclient.NewTransport(ctx, httpclient.WithIdleHosts(10*time.Second))}, "http://"+addr+"/")
	// Output: 200 hello
}

// A proxy forwards what the server has sent, without decompressing it.
func ExampleWithoutDecompression() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, "hello")
		z.Close()
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	web := httpclient.New(ctx, "web.default", httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithoutDecompression())
	rsp, err := (&http.Client{Transport: web}).Get("http://web.default/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	fmt.Println(rsp.Header.Get("Content-Encoding"))
	// Output: gzip
}
