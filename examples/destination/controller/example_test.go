package controller_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/destination/controller"
)

func ExampleParse() {
	_, err := controller.Parse("web.yaml", []byte(`
destinations:
  web.default:80:
    endpoints:
      - {addr: 10.0.0.1:8080}
      - {addr: 10.0.0.2, wieght: 5}
`))
	fmt.Println(err)
	// Output:
	// web.yaml:6:16: destinations["web.default:80"].endpoints[1].addr "10.0.0.2": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80
	// web.yaml:6:26: destinations["web.default:80"].endpoints[1].wieght: unknown field: there are addr, authority, identity, labels, opaque_port, protocol, server_name, weight
}

// A controller inside a program. Clients receive the changes of Set.
func ExampleController() {
	web := func(addrs ...string) controller.Config {
		var d controller.Destination
		for _, a := range addrs {
			d.Endpoints = append(d.Endpoints, controller.Endpoint{Addr: netip.MustParseAddrPort(a)})
		}
		return controller.Config{Destinations: map[string]controller.Destination{"web.default:80": d}}
	}
	c := controller.New(nil)
	if err := c.Set(web("10.0.0.1:8080")); err != nil {
		fmt.Println(err)
	}

	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error)
	go func() { served <- c.Serve(ctx, lis) }()

	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := pb.NewDestinationClient(conn).Get(ctx, &pb.GetDestination{Path: "web.default"})
	if err != nil {
		fmt.Println(err)
		return
	}
	next := func() {
		u, err := stream.Recv()
		fmt.Println(len(u.GetAdd().GetAddrs()), "added,", len(u.GetRemove().GetAddrs()), "removed, error:", err)
	}
	next()
	if err := c.Set(web("10.0.0.2:8080", "10.0.0.3:8080")); err != nil {
		fmt.Println(err)
	}
	next()
	next()

	cancel()
	fmt.Println("served:", <-served, "closed:", conn.Close())
	// Output:
	// 1 added, 0 removed, error: <nil>
	// 2 added, 0 removed, error: <nil>
	// 0 added, 1 removed, error: <nil>
	// served: <nil> closed: <nil>
}
