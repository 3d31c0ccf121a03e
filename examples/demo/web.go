package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/demo/emojivoto"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/outbound"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// proxy starts the proxy that pod sends all its requests to, with its tap at
// tapAddr or, where that is taken, anywhere.
func (a *application) proxy(ctx context.Context, pod, controllerAddr, tapAddr string) (*sidecar.Proxy, error) {
	p, err := sidecar.New(sidecar.Config{
		Listen: loopback, Admin: loopback, Tap: tapAddr, Fallback: true,
		Title:       "demo: proxy of " + pod,
		Destination: controllerAddr,
		Grace:       grace,
		Outbound: outbound.Config{
			MaxInFlight: 10_000, QueueCapacity: 1000, FailFast: 3 * time.Second,
			DiscoveryIdle: time.Minute,
			SourceLabels:  map[string]string{"pod": pod},
		},
	}, a.log)
	if err != nil {
		return nil, fmt.Errorf("proxy of %s: %w", pod, err)
	}
	a.running.Go(func() error { return p.Run(ctx) })
	return p, nil
}

// web starts the web front, which calls the gRPC services through its proxy.
// It knows them by name alone.
func (a *application) web(ctx context.Context, proxy string) error {
	emoji, err := grpcThrough(proxy, emojiName)
	if err != nil {
		return err
	}
	voting, err := grpcThrough(proxy, votingName)
	if err != nil {
		emoji.Close()
		return err
	}
	context.AfterFunc(ctx, func() {
		emoji.Close()
		voting.Close()
	})
	var g serve.Group
	addr := g.HTTP("web-0", loopback, emojivoto.NewWeb(emoji, voting))
	return a.announced(ctx, &g, webName, "web-0", addr)
}

func grpcThrough(proxy, name string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+proxy,
		grpc.WithAuthority(name), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("web: %s: %w", name, err)
	}
	return conn, nil
}

// dialler connects to addr, whatever it is asked for.
func dialler(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}
