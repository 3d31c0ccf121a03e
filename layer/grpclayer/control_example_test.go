package grpclayer_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/layer/grpclayer"
)

// A control plane may start later.
func ExampleNewControlPlaneConn() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	control, err := grpclayer.NewControlPlaneConn(context.Background(), grpclayer.ControlPlaneConfig{
		Addr:           l.Addr().String(), // or "linkerd-dst-headless.linkerd.svc.cluster.local.:8086"
		ConnectTimeout: 10 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	done := make(chan error)
	go func() { done <- server.Serve(l) }()

	rsp, err := grpc_health_v1.NewHealthClient(control).Check(context.Background(), new(grpc_health_v1.HealthCheckRequest))
	fmt.Println(rsp.GetStatus(), err)
	fmt.Println(control.Close(context.Background()))
	server.Stop()
	<-done
	// Output:
	// SERVING <nil>
	// <nil>
}
