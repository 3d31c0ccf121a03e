package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// anyPort is a free port on loopback. With Config.Fallback, listeners use it when their address is
// in use.
const anyPort = "127.0.0.1:0"

// path is a listener for outbound or inbound connections, with the server for them.
type path struct {
	name     string
	listener net.Listener
	addr     netip.AddrPort
	svc      tcplayer.Server
	accept   settings.Socket
}

// listen adds a listener for each valid address to p.paths. svc serves its connections, and accept
// configures their sockets.
func (p *Proxy) listen(name string, addrs []netip.AddrPort, accept settings.Socket, svc tcplayer.Server) error {
	for _, addr := range addrs {
		// An address that is not valid needs no listener.
		if !addr.IsValid() {
			continue
		}
		l, err := p.bind(addr, accept.Backlog)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// The port may be 0 or the fallback's, so ask the listener.
		addr, err := netip.ParseAddrPort(l.Addr().String())
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", name, err), l.Close())
		}
		p.paths = append(p.paths, path{name, l, addr, svc, accept})
	}
	return nil
}

// bind listens on addr. If that fails and Config.Fallback is set, it listens on a free port on
// loopback.
func (p *Proxy) bind(addr netip.AddrPort, backlog int) (net.Listener, error) {
	// In tests, the network replaces TCP.
	if p.config.Network != nil {
		return p.config.Network.Listen("tcp", addr.String())
	}
	l, err := listen(addr, backlog, p.config.ReusePort)
	// The fallback's port is free, so it need not be shared with another process.
	if err != nil && p.config.Fallback {
		return listen(netip.MustParseAddrPort(anyPort), backlog, false) // no other process may listen
	}
	return l, err
}

// addrOf returns the address of the first listener with the given name, or "" if there is none.
func (p *Proxy) addrOf(name string) string {
	i := slices.IndexFunc(p.paths, func(path path) bool { return path.name == name })
	if i < 0 {
		return ""
	}
	return p.paths[i].addr.String()
}

// serve accepts connections until ctx ends, and then waits for them to end. It closes those that
// are still open after the grace period.
func (p *Proxy) serve(ctx context.Context, path path) error {
	sockets := path.accept.Options()
	opts := make([]tcplayer.ServeOption, 0, len(sockets)+2)
	opts = append(opts, tcplayer.WithShutdownTimeout(p.config.Shutdown.Grace), tcplayer.WithLogger(p.log))
	// The loop only converts the type, because sockets are options of a narrower one.
	for _, opt := range sockets {
		opts = append(opts, opt)
	}
	p.log.Info("listening", "for", path.name, "addr", path.addr.String())
	// Connections that already wait in the kernel are still accepted after ctx has ended.
	ctx, cancel := untilAccepted(ctx, path.listener)
	defer cancel()
	err := tcplayer.Serve(ctx, path.listener, path.svc, opts...)
	switch {
	case err == nil:
		return nil
	// Serve was asked to end, so its error only tells that connections were still open.
	case ctx.Err() != nil:
		p.log.Warn("connections were closed at the end of the grace period", "for", path.name, "error", err)
		return nil
	}
	return fmt.Errorf("%s: %w", path.name, err)
}

// maxAcceptDelay limits how long a stopped proxy keeps accepting connections that are already
// waiting.
const maxAcceptDelay = time.Second

// untilAccepted returns a context that outlives ctx until no more connections wait in l, but at
// most by maxAcceptDelay. The kernel has already established waiting connections, and would reset
// them if l closed.
func untilAccepted(ctx context.Context, l net.Listener) (context.Context, context.CancelFunc) {
	// WithoutCancel, because the new context ends later than ctx.
	accepting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		// The kernel cannot notify that the queue is empty, so poll every millisecond.
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		deadline := time.Now().Add(maxAcceptDelay)
		for waiting(l) && time.Now().Before(deadline) {
			<-tick.C
		}
	})
	return accepting, func() { stop(); cancel() }
}

// certified returns svc, but not ready until the proxy has a certificate. Until then, connections
// wait to be accepted. If id is nil, no certificate is needed.
func certified(id *identity.Identity, svc tcplayer.Server) tcplayer.Server {
	if id == nil {
		return svc
	}
	return &certifiedServer{svc, id}
}

// certifiedServer is ready when id has a certificate and the embedded Server is ready.
type certifiedServer struct {
	tcplayer.Server
	id *identity.Identity
}

// Ready waits for the first certificate, and then for the inner server.
func (c *certifiedServer) Ready(ctx context.Context) error {
	if err := c.id.Ready(ctx); err != nil {
		return err
	}
	return c.Server.Ready(ctx)
}

func (c *certifiedServer) Next() tcplayer.Server { return c.Server }
