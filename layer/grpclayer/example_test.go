package grpclayer_test

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/resolve"
)

// serveHealth serves gRPC's health service behind a stack of layers.
func serveHealth() (addr netip.AddrPort, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
	}
	front := grpclayer.NewServer(grpclayer.NewStack().Timeout(time.Minute).Limit(100).Layer())
	s := grpc.NewServer(front.ServerOptions()...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	return netip.MustParseAddrPort(l.Addr().String()), s.Stop
}

// only is a resolver of one endpoint.
func only(addr netip.AddrPort) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			e := resolve.Endpoint{ID: resolve.ID{Addr: addr}}
			if yield(resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{e}}, nil) {
				<-ctx.Done()
			}
		}
	})
}

// A plain gRPC client with our discovery, balancing and layers.
func ExampleDialOptions() {
	grpclayer.Register("gotower") // once, at the start of the program

	addr, stop := serveHealth()
	defer stop()
	options := append(grpclayer.DialOptions("gotower", only(addr),
		grpclayer.WithCallLayer(grpclayer.NewStack().Timeout(time.Minute).Layer()),
		grpclayer.WithEndpointLayer(grpclayer.NewEndpointStack().Limit(100).Layer()),
	), grpc.WithTransportCredentials(insecure.NewCredentials()))
	cc, err := grpc.NewClient("gotower:///web.default:80", options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cc.Close()

	rsp, err := healthpb.NewHealthClient(cc).Check(context.Background(), new(healthpb.HealthCheckRequest))
	fmt.Println(rsp.GetStatus(), err)
	// Output: SERVING <nil>
}

// A rejection by a layer has a gRPC status and keeps its chain.
func ExampleClient_Unary() {
	addr, stop := serveHealth()
	defer stop()
	cc, err := grpc.NewClient(addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpclayer.NewClient(grpclayer.NewStack().Limit(0).Layer()).Unary))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cc.Close()

	_, err = healthpb.NewHealthClient(cc).Check(context.Background(), new(healthpb.HealthCheckRequest))
	fmt.Println(status.Code(err), "-", err)
	// Output: Unavailable - limit: not ready: 0 of 0 in flight
}

// The resolver of gotower with a balancer of grpc-go.
func ExampleNewResolver() {
	addr, stop := serveHealth()
	defer stop()
	cc, err := grpc.NewClient("gotower:///web.default:80",
		grpc.WithResolvers(grpclayer.NewResolver("gotower", only(addr))),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cc.Close()

	rsp, err := healthpb.NewHealthClient(cc).Check(context.Background(), new(healthpb.HealthCheckRequest))
	fmt.Println(rsp.GetStatus(), err)
	// Output: SERVING <nil>
}

// The balancer of gotower with a resolver of grpc-go. The endpoints get calls in turn.
func ExampleNewBalancer() {
	var picks layer.Describer
	balancer.Register(grpclayer.NewBalancer("in_turn", // once, at the start of the program
		grpclayer.WithBalance(balance.Config{Policy: balance.Policy{Picker: balance.RoundRobin()}}),
		grpclayer.WithOnBalancer(func(b layer.Describer) { picks = b })))

	addr, stop := serveHealth()
	defer stop()
	cc, err := grpc.NewClient("passthrough:///"+addr.String(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"in_turn": {}}]}`),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cc.Close()

	rsp, err := healthpb.NewHealthClient(cc).Check(context.Background(), new(healthpb.HealthCheckRequest))
	fmt.Println(rsp.GetStatus(), err)
	fmt.Println(picks.Describe().Name)
	// Output:
	// SERVING <nil>
	// balance
}
