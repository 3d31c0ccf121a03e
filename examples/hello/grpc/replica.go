package main

import (
	"log"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/resolve"
)

// replica starts a server on a local port.
func replica() resolve.Endpoint {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { log.Fatal(server.Serve(listener)) }()
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(listener.Addr().String())}}
}
