package httplayer_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// A server that ends in good order: one ctx closes the listener and begins the
// drain. Serve returns when the last connection has ended, or after the drain timeout.
func ExampleServer() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "hello by %s to %v", r.Proto, httplayer.ConnFromContext(r.Context()).LocalAddr() != nil)
	})
	ctx, terminate := context.WithCancel(context.Background())
	defer terminate()
	server := httplayer.NewServer(httplayer.FromHandler(hello), httplayer.WithDrainOnDone(ctx), httplayer.WithDrainTimeout(10*time.Millisecond))
	front := tcplayer.Detect(tcplayer.Protocols{HTTP1: server, HTTP2: server})

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- tcplayer.Serve(ctx, l, front, tcplayer.WithShutdownTimeout(time.Minute)) }()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	rsp, err := (&http.Client{Transport: transport}).Get("http://" + l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, _ := io.ReadAll(rsp.Body)
	fmt.Println(string(body))

	terminate()
	fmt.Println("served:", <-served)
	// Output:
	// hello by HTTP/1.1 to true
	// served: <nil>
}
