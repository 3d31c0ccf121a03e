// Command gateway forwards requests to two services, with a rate limit and an access log.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer/httplayer"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "the address of the gateway")
	flag.Parse()

	upstream := func(name string) http.Handler { // a service with two replicas on local ports
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, name, r.URL.Path) })
		replica := func() string { return httptest.NewServer(answer).Listener.Addr().String() }
		return httplayer.Handler(httpclient.New(context.Background(), name, httpclient.WithAddrs(replica(), replica())))
	}
	routes := http.NewServeMux()
	routes.Handle("/books/", upstream("books"))
	routes.Handle("/", upstream("web"))

	front := httplayer.NewStack().
		With("forwarded", httplayer.Forwarded()).
		With("rate_by_client", httplayer.RateLimitByClient(1, 5)). // 1 request a second, at most 5 together
		Limit(1000)
	gateway := httplayer.Handler(front.Service(httplayer.FromHandler(routes)), httplayer.WithAccessLog(os.Stdout, httplayer.JSONLog, nil))
	fmt.Printf("try: curl -i http://%s/books/1    stop: Ctrl-C\n", *listen)
	server := http.Server{Addr: *listen, Handler: gateway, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
