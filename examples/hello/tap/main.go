// Command tap is an HTTP server whose requests you can watch from outside.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "the address of the server")
	watch := flag.String("tap", tap.DefaultAddress, "the address of the tap")
	flag.Parse()

	registry := tap.NewRegistry()
	go func() { log.Fatal(tap.Serve(context.Background(), *watch, registry)) }()
	go func() { // a client, so that there is something to see: /missing gets 404
		for range time.Tick(100 * time.Millisecond) {
			for _, path := range []string{"/hello", "/missing"} {
				if rsp, err := http.Get("http://" + *listen + path); err == nil {
					rsp.Body.Close()
				}
			}
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	tapped := httplayer.Middleware(tap.Layer(registry, httplayer.HTTP{}, tap.Inbound))
	fmt.Printf("try: go run ./examples/tapctl top %s    stop: Ctrl-C\n", *watch)
	server := http.Server{Addr: *listen, Handler: tapped(mux), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
