// Command client balances requests over two servers, and shows how the client chose.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
)

func main() {
	replica := func(delay time.Duration) string { // a server on a local port
		answer := func(http.ResponseWriter, *http.Request) { time.Sleep(delay) }
		return httptest.NewServer(http.HandlerFunc(answer)).Listener.Addr().String()
	}
	web := httpclient.New(context.Background(), "web.example", httpclient.WithAddrs(replica(0), replica(20*time.Millisecond)))
	client := &http.Client{Transport: web}
	for range 100 {
		rsp, err := client.Get("http://web.example/hello")
		if err != nil {
			log.Fatal(err)
		}
		rsp.Body.Close()
	}
	fmt.Println(layer.Describe(web)) // the layers and the servers, with their state
}
