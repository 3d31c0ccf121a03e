package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/examples/destination/controller"
)

// startWorld starts what the proxy needs on an empty machine: two replicas of web.example, a
// gRPC server of grpc.example, a server of echo.example that returns the bytes it gets, and a
// controller that knows them. It returns the address of the controller.
func startWorld(ctx context.Context) string {
	// replica starts a server that answers with its name.
	replica := func(name string) controller.Endpoint {
		answer := func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, name, r.URL.Path) }
		server := httptest.NewServer(http.HandlerFunc(answer))
		return endpoint(server.Listener)
	}
	echo := listen()
	go func() {
		for conn, err := echo.Accept(); err == nil; conn, err = echo.Accept() {
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	calls := listen()
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { log.Fatal(server.Serve(calls)) }()

	web := controller.Destination{Endpoints: []controller.Endpoint{replica("web-0"), replica("web-1")}}
	echoes := controller.Destination{Endpoints: []controller.Endpoint{endpoint(echo)}}
	c := controller.New(nil)
	config := controller.Config{Destinations: map[string]controller.Destination{
		"web.example:80": web, "grpc.example:80": {Endpoints: []controller.Endpoint{endpoint(calls)}}, "echo.example:7": echoes,
	}}
	if err := c.Set(config); err != nil {
		log.Fatal(err)
	}
	listener := listen()
	go func() { log.Fatal(c.Serve(ctx, listener)) }()
	return listener.Addr().String()
}

func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func endpoint(l net.Listener) controller.Endpoint {
	return controller.Endpoint{Addr: netip.MustParseAddrPort(l.Addr().String())}
}
