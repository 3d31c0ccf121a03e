package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
	"github.com/gotower/gotower/tap"
)

// roles returns the main function of each [role]. All proxies have the same arguments: the
// protocol, the backend's address and the controller's address.
func roles() map[string]role {
	return map[string]role{
		"backend":      backend,
		"load":         generate,
		"clients":      sendDuringReloads,
		"controller":   control,
		"relay":        relay,
		"reverseproxy": reverseProxy,
		"hop":          hop,
		"sidecar":      wholeSidecar,
		"inbound":      inboundSidecar,
		"mesh":         mesh,
		"net/http":     clientRole(standardClient),
		"httpclient":   clientRole(balancedClient),
	}
}

// memory returns how many allocations this process has made. It is the [command] of roles that only
// accept connections, and ignores its argument.
func memory(string) (any, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{Allocations: m.Mallocs}, nil
}

// listen listens on a free loopback port, and calls ready with the address and the command memory.
func listen(ready func(string, command)) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	// The connections wait in the listener until they are accepted.
	if err == nil {
		ready(l.Addr().String(), memory)
	}
	return l, err
}

// serve listens on a free loopback port, calls ready, and then handle for each connection in a new
// goroutine.
func serve(ready func(string, command), handle func(net.Conn)) error {
	l, err := listen(ready)
	// The loop ends if listening or accepting fails.
	for err == nil {
		var conn net.Conn
		if conn, err = l.Accept(); err == nil {
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}
	return err
}

// relay is the [role] of a proxy that copies bytes between client and backend, and parses nothing.
func relay(ctx context.Context, args []string, ready func(string, command)) error {
	return serve(ready, func(client net.Conn) {
		upstream, err := new(net.Dialer).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return
		}
		defer upstream.Close()
		// One direction runs in the background. The end of either closes both connections.
		go transfer(upstream, client)
		transfer(client, upstream)
	})
}

// transfer copies bytes through a buffer, as a proxy that parses requests does. io.Copy would let
// the kernel copy them.
func transfer(dst, src net.Conn) {
	defer dst.Close()
	for b := make([]byte, 32<<10); ; {
		n, err := src.Read(b)
		if err != nil {
			// The deferred Close of dst also ends the copy in the other direction.
			return
		}
		if _, err := dst.Write(b[:n]); err != nil {
			return
		}
	}
}

// buffers implements httputil.BufferPool, so that ReverseProxy reuses its buffers.
type buffers struct{ sync.Pool }

// Get returns a buffer of 32 KiB, which may be a used one.
func (b *buffers) Get() []byte {
	if room, ok := b.Pool.Get().(*[]byte); ok {
		return *room
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(room []byte) { b.Pool.Put(&room) }

// heapReserve is how many bytes [reverseProxy] and [hop] allocate without using them, like
// examples/proxy. The heap would otherwise be so small that the garbage collector runs many times
// per second, unlike in a service with data.
const heapReserve = 6 << 20

// reverseProxy is the [role] of httputil.ReverseProxy with its fastest settings.
func reverseProxy(_ context.Context, args []string, ready func(string, command)) error {
	// KeepAlive at the end of the function keeps the reserve in memory.
	defer runtime.KeepAlive(make([]byte, heapReserve))
	protocols := new(http.Protocols)
	// The server speaks the same protocol as the load generator and the backend.
	protocols.SetHTTP1(!isGRPC(args[0]))
	protocols.SetUnencryptedHTTP2(isGRPC(args[0]))
	srv := &http.Server{Protocols: protocols, ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: args[1]}) },
		Transport:  &http.Transport{Protocols: protocols, MaxIdleConnsPerHost: 2 * atOnce, DisableCompression: true},
		BufferPool: new(buffers),
	}}
	l, err := listen(ready)
	if err != nil {
		return err
	}
	return srv.Serve(l)
}

// hop is the [role] of a proxy with five of the library's layers: limit, queue, balance, tap and
// endpoint.
func hop(ctx context.Context, args []string, ready func(string, command)) error {
	defer runtime.KeepAlive(make([]byte, heapReserve))
	endpoints, err := static.Endpoints(args[1])
	if err != nil {
		return err
	}
	// The balancer asks the resolver for the endpoints of name, which are always the same.
	resolver := static.New(map[string][]resolve.Endpoint{name: endpoints})
	// mk makes the service of one endpoint for the balancer.
	mk := func(ctx context.Context, t discover.Target) httplayer.Service {
		addr := t.Endpoint.Addr
		return httplayer.NewStack().
			With("tap", tap.Layer(new(tap.Registry), httplayer.HTTP{}, tap.Outbound, tap.WithDestination(addr, nil))).
			Service(httplayer.NewEndpoint(ctx, addr.String()))
	}
	// A request waits in the queue for at most a second if no endpoint is ready.
	svc := httplayer.NewStack().Limit(10_000).Queue(1000, time.Second).
		Service(balance.Resolve(ctx, resolver, balance.Config{Target: name}, mk))
	l, err := listen(ready)
	if err != nil {
		return err
	}
	return tcplayer.Serve(ctx, l, httplayer.NewServer(svc))
}

// control is the [role] of the destination controller. Its only destination is [name], whose only
// endpoint is the backend.
func control(ctx context.Context, args []string, ready func(string, command)) error {
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	// The endpoint has no protocol, so proxies use that of the client.
	c := controller.New(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	err = c.Set(controller.Config{Destinations: map[string]controller.Destination{
		name: {Endpoints: []controller.Endpoint{{Addr: addr}}},
	}})
	if err != nil {
		return err
	}
	l, err := listen(ready)
	if err != nil {
		return err
	}
	return c.Serve(ctx, l)
}

// wholeSidecar is the [role] of the sidecar, examples/proxy, with its default settings.
func wholeSidecar(ctx context.Context, args []string, ready func(string, command)) error {
	s, err := sidecarSettings(args[2])
	if err != nil {
		return err
	}
	p, err := sidecar.New(sidecar.Config{Settings: s}, nil)
	if err != nil {
		return err
	}
	// Addr is the address of the outbound side, and memory only counts allocations.
	ready(p.Addr, memory)
	return p.Run(ctx)
}

// inboundSidecar is the [role] of the sidecar's inbound side in front of the backend, with an
// access log in JSON.
func inboundSidecar(ctx context.Context, args []string, ready func(string, command)) error {
	s, err := sidecarSettings(args[2])
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	// All requests go to the backend, instead of a connection's original destination.
	s.Inbound.Origin = settings.Origin{Kind: settings.Fixed, Addr: addr}
	s.Log.Access = settings.AccessJSON
	p, err := sidecar.New(sidecar.Config{Settings: s}, nil)
	if err != nil {
		return err
	}
	ready(p.Inbound, memory)
	return p.Run(ctx)
}

// sidecarSettings returns the default settings of examples/proxy with free ports and the controller
// at controllerAddr. The timeouts for connections are long, because the load uses all CPUs.
func sidecarSettings(controllerAddr string) (settings.Settings, error) {
	variables := map[string]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR": controllerAddr,
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR": "127.0.0.1:0",
		"LINKERD2_PROXY_INBOUND_LISTEN_ADDR":  "127.0.0.1:0",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR":    "127.0.0.1:0",
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR":  "127.0.0.1:0",

		"LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT":       "10s",
		"LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT":        "10s",
		"LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT": "20s",
		"LINKERD2_PROXY_INBOUND_HTTP_FAILFAST_TIMEOUT":  "20s",
	}
	// The proxy reads its settings from variables, instead of the environment.
	return settings.Read(func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	})
}
