package tap_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// watching watches registry while a program runs, and prints the events.
func watching(registry *tap.Registry, limit uint64, program func()) {
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		for registry.Describe().State.Get("watching") == 0 {
			runtime.Gosched()
		}
		program()
	}()
	for e, err := range registry.Watch(context.Background(), &tappb.WatchRequest{Limit: limit}) {
		switch {
		case err != nil:
			fmt.Println(err)
		case e.RequestInit != nil:
			fmt.Println("req", e.Direction, e.RequestInit.Method, e.RequestInit.Path)
		case e.ResponseInit != nil:
			fmt.Println("rsp", e.ResponseInit.Status)
		case e.ResponseEnd != nil && e.ResponseEnd.GRPCStatus != nil:
			fmt.Println("end", e.ResponseEnd.Bytes, "bytes,", *e.ResponseEnd.GRPCStatus)
		case e.ResponseEnd != nil:
			fmt.Println("end", e.ResponseEnd.Bytes, "bytes")
		case e.Open != nil:
			fmt.Println("open", e.Direction)
		case e.Close != nil:
			fmt.Println("close", e.Close.Sent, "sent,", e.Close.Received, "received")
		}
	}
	<-ran
}

// greeter listens on an address of this machine, and greets each client.
func greeter() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_, _ = io.WriteString(conn, "hello, ")
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	return l
}

// greet says its name, and hears the greeting.
func greet(conn net.Conn) {
	_, _ = io.WriteString(conn, "world")
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

// One line shows the requests of any HTTP server.
func ExampleLayer_httpServer() {
	registry := new(tap.Registry)
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

	shown := httplayer.Middleware(tap.Layer(registry, httplayer.HTTP{}, tap.Inbound))(hello) // the line

	server := httptest.NewServer(shown)
	defer server.Close()
	watching(registry, 1, func() {
		rsp, err := http.Get(server.URL + "/world")
		if err != nil {
			panic(err)
		}
		rsp.Body.Close()
	})
	// Output:
	// req inbound GET /world
	// rsp 200
	// end 5 bytes
}

// One line shows the requests of any HTTP client.
func ExampleLayer_httpClient() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	registry := new(tap.Registry)
	client := new(http.Client)

	client.Transport = httplayer.Transport(tap.Layer(registry, httplayer.HTTP{}, tap.Outbound), client.Transport) // the line

	watching(registry, 1, func() {
		rsp, err := client.Get(server.URL + "/world")
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, rsp.Body)
		rsp.Body.Close()
	})
	// Output:
	// req outbound GET /world
	// rsp 200
	// end 5 bytes
}

// One line each shows the calls of any gRPC server and client.
func ExampleLayer_grpc() {
	served, called := new(tap.Registry), new(tap.Registry)

	server := grpc.NewServer(grpclayer.NewServer(tap.Layer(served, grpclayer.GRPC{}, tap.Inbound)).ServerOptions()...)
	options := grpclayer.NewClient(tap.Layer(called, grpclayer.GRPC{}, tap.Outbound)).DialOptions()

	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for _, registry := range []*tap.Registry{served, called} {
		watching(registry, 2, func() {
			for _, service := range []string{"", "unknown"} {
				_, _ = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
			}
		})
	}
	// Output:
	// req inbound POST /grpc.health.v1.Health/Check
	// rsp 200
	// end 7 bytes, OK
	// req inbound POST /grpc.health.v1.Health/Check
	// rsp 200
	// end 0 bytes, NotFound
	// req outbound POST /grpc.health.v1.Health/Check
	// rsp 200
	// end 7 bytes, OK
	// req outbound POST /grpc.health.v1.Health/Check
	// rsp 200
	// end 0 bytes, NotFound
}

// One line shows the connections that a program makes.
func ExampleConnections() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := greeter()
	defer server.Close()
	registry := new(tap.Registry)
	endpoint := tcplayer.NewEndpoint(ctx, server.Addr().String())

	shown := tap.Connections(registry)(endpoint) // the line

	watching(registry, 1, func() {
		conn, err := shown.Call(ctx, tcplayer.Request{})
		if err != nil {
			panic(err)
		}
		greet(conn)
	})
	// Output:
	// open outbound
	// close 5 sent, 12 received
}

// Two lines make a program one that tapctl can watch.
func ExampleServe() {
	ctx, cancel := context.WithCancel(context.Background())
	listening := make(chan net.Addr, 1)
	ended := make(chan error)

	registry := new(tap.Registry) // for the layers
	go func() {
		ended <- tap.Serve(ctx, "127.0.0.1:0", registry, tap.WithOnListen(func(at net.Addr) { listening <- at }))
	}()

	fmt.Println((<-listening).Network())
	cancel()
	fmt.Println(<-ended)
	fmt.Println(tap.Serve(context.Background(), ":4190", registry))
	// Output:
	// tcp
	// <nil>
	// tap: serve on :4190: other machines can reach this address: listen on 127.0.0.1, or name the clients by WithCredentials and WithAllowedIdentities
}
