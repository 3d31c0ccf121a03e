package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/demo/emojivoto"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// proxy starts pod's proxy. Its tap listens on tapAddr, or on a free port if tapAddr is in use.
func (a *application) proxy(ctx context.Context, pod, controllerAddr, tapAddr string) (*sidecar.Proxy, error) {
	// The keys are names of settings without their prefix, which are environment variables otherwise.
	vars := map[string]string{
		"DESTINATION_SVC_ADDR":            controllerAddr,
		"DESTINATION_PROFILE_SUFFIXES":    ".",
		"OUTBOUND_LISTEN_ADDR":            loopback,
		"INBOUND_LISTEN_ADDR":             loopback,
		"ADMIN_LISTEN_ADDR":               loopback,
		"CONTROL_LISTEN_ADDR":             tapAddr,
		"TAP_LABELS":                      "pod=" + pod,
		"SHUTDOWN_GRACE_PERIOD":           fmt.Sprintf("%dms", grace.Milliseconds()),
		"OUTBOUND_DISCOVERY_IDLE_TIMEOUT": "1m",
	}
	// The proxy reads its settings from vars, instead of the environment.
	s, err := settings.Read(func(name string) (value string, ok bool) {
		value, ok = vars[strings.TrimPrefix(name, settings.Prefix)]
		return value, ok
	})
	if err != nil {
		return nil, fmt.Errorf("proxy of %s: %w", pod, err)
	}
	p, err := sidecar.New(sidecar.Config{Settings: s, Fallback: true, Title: "demo: proxy of " + pod}, a.log)
	if err != nil {
		return nil, fmt.Errorf("proxy of %s: %w", pod, err)
	}
	a.running.Go(func() error { return p.Run(ctx) })
	return p, nil
}

// web starts the web front and announces it to the controller. The web front calls the gRPC
// services by name, through the proxy at the address proxy.
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
	// The server uses the connections until ctx ends.
	context.AfterFunc(ctx, func() {
		emoji.Close()
		voting.Close()
	})
	var g serve.Group
	addr := g.HTTP("web-0", loopback, emojivoto.NewWeb(emoji, voting))
	return a.announce(ctx, &g, webName, "web-0", addr)
}

// grpcThrough returns a connection to the proxy, for calls to the service name.
func grpcThrough(proxy, name string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+proxy,
		// The proxy finds the service by the authority.
		grpc.WithAuthority(name), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("web: %s: %w", name, err)
	}
	return conn, nil
}

// dialler returns a dial function that always connects to addr, whatever address is requested.
func dialler(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}
