package httpclient_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/gotower/gotower/httpclient"
)

// hello starts a server that answers with text, and returns its address.
func hello(text string) (addr string, stop func()) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	return s.Listener.Addr().String(), s.Close
}

// show sends a GET request and prints the response.
func show(c *http.Client, url string) {
	rsp, err := c.Get(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	text, _ := io.ReadAll(rsp.Body)
	fmt.Println(rsp.StatusCode, string(text))
}

// A client of any host, in place of http.DefaultTransport.
func ExampleNewTransport() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, stop := hello("hello")
	defer stop()
	c := &http.Client{Transport: httpclient.NewTransport(ctx)}
	show(c, "http://"+addr+"/")
	// Output: 200 hello
}

// A client that knows its hosts and refuses all others.
func ExampleOnlyHosts() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, stopFirst := hello("web")
	defer stopFirst()
	second, stopSecond := hello("web")
	defer stopSecond()
	c := &http.Client{Transport: httpclient.NewTransport(ctx, httpclient.WithHosts(httpclient.OnlyHosts(map[string][]httpclient.Option{
		"web.default": {httpclient.WithAddrs(first, second)},
	})))}
	show(c, "http://web.default/")
	show(c, "http://web.defualt/")
	// Output:
	// 200 web
	// Get "http://web.defualt/": httpclient: host web.defualt:80: not a known host
}

// Another name is resolved for one host, and all other hosts are resolved by their names.
func ExampleWithHosts() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, stop := hello("from the headless Service")
	defer stop()
	c := &http.Client{Transport: httpclient.NewTransport(ctx, httpclient.WithHosts(func(host string) ([]httpclient.Option, error) {
		if host == "web.default:80" {
			return []httpclient.Option{httpclient.WithTarget(addr)}, nil
		}
		return nil, nil
	}))}
	show(c, "http://web.default/")
	// Output: 200 from the headless Service
}
