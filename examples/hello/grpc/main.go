// Command grpc balances the calls of a plain grpc-go client over two servers.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func main() {
	grpclayer.Register("gotower") // tells grpc-go about the balancer, once in a program
	resolver := static.New(map[string][]resolve.Endpoint{"web:80": {replica(), replica()}})
	calls := grpclayer.NewStack().Timeout(10 * time.Second).Layer()
	options := append(grpclayer.DialOptions("gotower", resolver, grpclayer.WithCallLayer(calls)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("gotower:///web:80", options...)
	if err != nil {
		log.Fatal(err)
	}
	client := grpc_health_v1.NewHealthClient(conn)
	for range 20 {
		var server peer.Peer
		rsp, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&server))
		fmt.Println(rsp.GetStatus(), err, "from", server.Addr)
	}
}
