package linkerd_test

import (
	"context"
	"fmt"
	"net"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	pbnet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/linkerd"
)

// web is a controller that knows one service with one endpoint.
type web struct {
	destination.UnimplementedDestinationServer
}

func (web) Get(req *destination.GetDestination, to grpc.ServerStreamingServer[destination.Update]) error {
	ip := &pbnet.IPAddress{Ip: &pbnet.IPAddress_Ipv4{Ipv4: 10<<24 | 1}}
	err := to.Send(&destination.Update{Update: &destination.Update_Add{Add: &destination.WeightedAddrSet{
		Addrs:        []*destination.WeightedAddr{{Addr: &pbnet.TcpAddress{Ip: ip, Port: 8080}}},
		MetricLabels: map[string]string{"service": req.GetPath()},
	}}})
	<-to.Context().Done()
	return err
}

func ExampleNew() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	destination.RegisterDestinationServer(server, web{})
	go server.Serve(l)
	defer server.Stop()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	var set resolve.Set
	r := linkerd.New(conn, linkerd.WithContextToken(`{"ns":"default"}`))
	for update, err := range r.Resolve(context.Background(), "web.default.svc.cluster.local:80") {
		if err != nil {
			fmt.Println(err)
			continue
		}
		set.Apply(update)
		for _, e := range set.Endpoints() {
			fmt.Println(e.Addr, e.Labels)
		}
		break // it would wait for a change
	}
	// Output:
	// 10.0.0.1:8080 map[service:web.default.svc.cluster.local:80]
}
