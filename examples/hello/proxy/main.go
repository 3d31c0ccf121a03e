// Command proxy is the smallest sidecar: it forwards the HTTP requests, gRPC calls and other
// connections of an application to the endpoints that linkerd's control plane names.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	profilesource "github.com/gotower/gotower/profiles/linkerd"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/resolve/static"
	"github.com/gotower/gotower/tap"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:4140", "the address of the proxy")
	watch := flag.String("tap", tap.DefaultAddress, "the address of the tap")
	control := flag.String("controller", "", "the address of a destination controller; by default the proxy starts one")
	bytesTo := flag.String("bytes", "echo.example:7", "the target of connections that are neither redirected nor HTTP")
	flag.Parse()
	ctx := context.Background()
	if *control == "" {
		*control = startWorld(ctx)
	}
	conn, err := grpc.NewClient(*control, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	taps := tap.NewRegistry()
	go func() { log.Fatal(tap.Serve(ctx, *watch, taps)) }()

	listening := new(net.ListenConfig)
	listening.SetMultipathTCP(false) // the kernel has no original destination for it
	listener, err := listening.Listen(ctx, "tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("try: curl -x http://%s http://web.example/hello    stop: Ctrl-C\n", *listen)
	log.Fatal(tcplayer.Serve(ctx, listener, server(ctx, conn, taps, *bytesTo)))
}

// server returns the proxy's path for HTTP requests to the target in their authority, and for other connections to
// their original destination, or to bytesTo without one. conn leads to the controller, and taps shows the traffic.
func server(ctx context.Context, conn *grpc.ClientConn, taps *tap.Registry, bytesTo string) tcplayer.Server {
	requests := layer.NewCache(ctx, targets(conn, httplayer.HTTP{}, httplayer.NewStack(),
		func(ctx context.Context, t discover.Target) httplayer.Service {
			watched := tap.Layer(taps, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(t.Endpoint.Addr, t.Endpoint.Labels))
			return watched(httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), httplayer.WithKeepVersion()))
		}, profiles.WithRouteLayers(httplayer.HTTP{})), layer.CachePolicy{})

	connections := layer.NewCache(ctx, targets(conn, tcplayer.Bytes{}, tcplayer.NewStack(),
		func(ctx context.Context, t discover.Target) tcplayer.Service {
			watched := tap.Connections(taps, tap.WithDestination(t.Endpoint.Addr, t.Endpoint.Labels))
			return watched(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String()))
		}, nil, balance.WithCompletion(tcplayer.UntilClosed)),
		layer.CachePolicy{}, layer.WithCompletion(tcplayer.UntilClosed))

	web := httplayer.NewServer(requests.Router(authority))
	original := connections.Router(func(r tcplayer.Request) (string, error) { return r.Server.String(), nil })
	redirected := tcplayer.Detect(tcplayer.Protocols{HTTP1: web, HTTP2: web, Opaque: tcplayer.Forward(original)})
	direct := tcplayer.Detect(tcplayer.Protocols{HTTP1: web, HTTP2: web, Opaque: tcplayer.Forward(connections.Service(bytesTo))})
	return tcplayer.Transparent(origin, redirected, direct)
}

// origin finds the original destination of a connection. A connection that was not redirected has
// the address of the proxy, as has any connection on a system without connection tracking.
func origin(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if redirected, err := tcplayer.SOOriginalDst()(ctx, conn); err == nil {
		return redirected, nil
	}
	return tcplayer.OverrideAddrs(conn, netip.AddrPort{}, netip.MustParseAddrPort(conn.LocalAddr().String())), nil
}

// targets returns a function that makes the service of a target: its profile chooses a route and a
// part of a split, and a balancer chooses an endpoint. Both follow the controller behind conn.
func targets[Req, Rsp any](conn *grpc.ClientConn, access layer.Accessor[Req, Rsp], stack layer.Stack[Req, Rsp],
	endpoint discover.MakeService[Req, Rsp], routing profiles.Option[Req, Rsp], balancing ...balance.Option[Rsp],
) func(ctx context.Context, target string) layer.Service[Req, Rsp] {
	source := profilesource.New(conn)
	return func(ctx context.Context, target string) layer.Service[Req, Rsp] {
		// balancer returns the service for one backend of a profile. The router calls it.
		balancer := func(name string) layer.Service[Req, Rsp] {
			resolver := linkerd.New(conn)
			if endpoints, err := static.Endpoints(name); err == nil { // an IP address is its own endpoint
				resolver = static.New(map[string][]resolve.Endpoint{name: endpoints})
			}
			balanced := balance.Resolve(ctx, resolver, balance.Config{Target: name}, endpoint, balancing...)
			return stack.Queue(1000, 3*time.Second).Service(balanced)
		}
		return profiles.New(ctx, profiles.Config{Target: target, Source: source}, access, balancer, routing)
	}
}

// authority returns the target of a request, with a port.
func authority(req *http.Request) (string, error) {
	name := strings.ToLower(httplayer.HTTP{}.Authority(req))
	if _, _, err := net.SplitHostPort(name); err != nil {
		name = net.JoinHostPort(strings.Trim(name, "[]"), "80")
	}
	return name, nil
}
