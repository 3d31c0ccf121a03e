package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// authorityName and serverName are the names in the certificates of the certificate authority and
// of the second sidecar, which is in front of the server.
const (
	authorityName = "identity.cluster.local"
	serverName    = "server.cluster.local"
)

// mesh is the [role] of two sidecars with mutual TLS. Requests pass the first one's outbound side
// and the second one's inbound side. The process also contains the controller and the certificate
// authority, which are idle during the measurement.
func mesh(ctx context.Context, args []string, ready func(string, command)) error {
	return meshOf(ctx, args[1], func(client *sidecar.Proxy) { ready(client.Addr, memory) })
}

// meshOf runs two sidecars in front of the server at the address backend. When both serve, it calls
// ready with the first one, which accepts requests. It returns the first error.
func meshOf(ctx context.Context, backend string, ready func(client *sidecar.Proxy)) error {
	dir, err := os.MkdirTemp("", "gotower-bench-mesh-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	authority, err := ca.New("cluster.local")
	if err != nil {
		return err
	}
	// Four goroutines send to it: two servers and two sidecars. It has room for all, so none blocks.
	ended := make(chan error, 4)
	authorityAddr, err := background(ended, func(l net.Listener) error {
		// This authority accepts every token.
		return ca.Serve(ctx, l, authority, func(context.Context, string, []byte) error { return nil }, authorityName)
	})
	if err != nil {
		return err
	}
	destinations := controller.New(slog.New(slog.DiscardHandler))
	controllerAddr, err := background(ended, func(l net.Listener) error { return destinations.Serve(ctx, l) })
	if err != nil {
		return err
	}
	// start starts a sidecar with the identity name, whose inbound connections have the destination that origin finds.
	start := func(name string, origin settings.Origin) (*sidecar.Proxy, error) {
		s, err := sidecarSettings(controllerAddr)
		if err != nil {
			return nil, err
		}
		// Each sidecar has its own key and token.
		keys := filepath.Join(dir, name)
		token := filepath.Join(dir, name+".token")
		err = errors.Join(os.Mkdir(keys, 0o700), os.WriteFile(token, []byte("token"), 0o600), identity.Generate(keys, name))
		if err != nil {
			return nil, err
		}
		s.Inbound.Origin = origin
		s.Identity = &settings.Identity{
			Controller: settings.Controller{Addr: authorityAddr, Name: authorityName}, Dir: keys,
			TrustAnchors: authority.TrustAnchors(), TokenFile: token, ServerID: name, ServerName: name,
		}
		p, err := sidecar.New(sidecar.Config{Settings: s}, nil)
		if err == nil {
			go func() { ended <- p.Run(ctx) }()
		}
		return p, err
	}
	backendAddr, err := netip.ParseAddrPort(backend)
	if err != nil {
		return err
	}
	// The second sidecar starts first, because the controller announces its address.
	server, err := start(serverName, settings.Origin{Kind: settings.Fixed, Addr: backendAddr})
	if err != nil {
		return err
	}
	inbound, err := netip.ParseAddrPort(server.Inbound)
	if err != nil {
		return err
	}
	err = destinations.Set(controller.Config{Destinations: map[string]controller.Destination{
		// The identity makes the first sidecar use TLS to the second one.
		name: {Endpoints: []controller.Endpoint{{Addr: inbound, Protocol: controller.H2, Identity: serverName}}},
	}})
	if err != nil {
		return err
	}
	client, err := start("client.cluster.local", settings.Origin{})
	if err != nil {
		return err
	}
	ready(client)
	// The sidecars run until one part fails or ctx ends.
	return <-ended
}

// background calls serve with a listener on a free loopback port in a new goroutine, and returns
// the listener's address. serve's error is sent to ended.
func background(ended chan<- error, serve func(net.Listener) error) (addr string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { ended <- serve(l) }()
	return l.Addr().String(), nil
}
