package linkerd_test

import (
	"context"
	"fmt"
	"net"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/profiles/linkerd"
)

// emojivoto is a controller that knows one destination.
type emojivoto struct {
	destination.UnimplementedDestinationServer
}

func (emojivoto) GetProfile(_ *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile]) error {
	err := out.Send(&destination.DestinationProfile{
		FullyQualifiedName: "web-svc.emojivoto.svc.cluster.local",
		DstOverrides: []*destination.WeightedDst{
			{Authority: "web-v1.emojivoto.svc.cluster.local:80", Weight: 900},
			{Authority: "web-v2.emojivoto.svc.cluster.local:80", Weight: 100},
		},
	})
	<-out.Context().Done()
	return err
}

func ExampleNew() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	defer server.Stop()
	destination.RegisterDestinationServer(server, emojivoto{})
	go func() { _ = server.Serve(listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close() }()

	source := linkerd.New(conn, linkerd.WithContextToken(`{"ns":"emojivoto"}`))
	for profile, err := range source.Watch(context.Background(), "web-svc.emojivoto.svc.cluster.local:80") {
		if err != nil {
			fmt.Println(err) // news; the source tries again
			continue
		}
		fmt.Println(profile.Name)
		for _, target := range profile.Targets {
			fmt.Println(target.Weight, target.Authority)
		}
		break // ends the watch
	}
	// Output:
	// web-svc.emojivoto.svc.cluster.local
	// 900 web-v1.emojivoto.svc.cluster.local:80
	// 100 web-v2.emojivoto.svc.cluster.local:80
}
