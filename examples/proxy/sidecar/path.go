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

// anyPort is any free port of loopback. With Config.Fallback, a listener uses it if the
// address of the listener is in use.
const anyPort = "127.0.0.1:0"

// path is a listener of the outbound or inbound path, with the server that serves its
// connections.
type path struct {
	name   string
	l      net.Listener
	at     netip.AddrPort
	svc    tcplayer.Server
	accept settings.Socket
}

// listen opens a listener of the outbound or inbound path for each valid address, and adds
// it to p.paths. name is the name of the path. The argument svc serves the connections, and
// accept has the settings of their sockets.
func (p *Proxy) listen(name string, addrs []netip.AddrPort, accept settings.Socket, svc tcplayer.Server) error {
	for _, addr := range addrs {
		if !addr.IsValid() {
			continue
		}
		l, err := p.bind(addr, accept.Backlog)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		at, err := netip.ParseAddrPort(l.Addr().String())
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", name, err), l.Close())
		}
		p.paths = append(p.paths, path{name, l, at, svc, accept})
	}
	return nil
}

// bind listens on addr. If that fails and Config.Fallback is set, it listens on any free
// port of loopback.
func (p *Proxy) bind(addr netip.AddrPort, backlog int) (net.Listener, error) {
	if p.config.Network != nil {
		return p.config.Network.Listen("tcp", addr.String())
	}
	l, err := listen(addr, backlog, p.config.ReusePort)
	if err != nil && p.config.Fallback {
		return listen(netip.MustParseAddrPort(anyPort), backlog, false)
	}
	return l, err
}

// at returns the address of the first listener of the path with the given name. It returns
// "" if the path has no listener.
func (p *Proxy) at(name string) string {
	i := slices.IndexFunc(p.paths, func(path path) bool { return path.name == name })
	if i < 0 {
		return ""
	}
	return p.paths[i].at.String()
}

// serve accepts connections of path until ctx ends. It then waits until all connections
// have ended, and returns. At the end of the grace period it closes the connections that
// are still open.
func (p *Proxy) serve(ctx context.Context, path path) error {
	sockets := path.accept.Options()
	opts := make([]tcplayer.ServeOption, 0, len(sockets)+2)
	opts = append(opts, tcplayer.WithShutdownTimeout(p.config.Shutdown.Grace), tcplayer.WithLogger(p.log))
	for _, opt := range sockets {
		opts = append(opts, opt)
	}
	p.log.Info("listening", "for", path.name, "addr", path.at.String())
	ctx, cancel := untilAccepted(ctx, path.l)
	defer cancel()
	err := tcplayer.Serve(ctx, path.l, path.svc, opts...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		p.log.Warn("connections were closed at the end of the grace period", "for", path.name, "error", err)
		return nil
	}
	return fmt.Errorf("%s: %w", path.name, err)
}

// maxAcceptDelay limits how long the proxy continues to accept waiting connections after it
// has been stopped.
const maxAcceptDelay = time.Second

// untilAccepted returns a context that stays active after ctx has ended, until no
// connection waits to be accepted from l, or at most for maxAcceptDelay. The kernel has
// already established a waiting connection, and would reset it if l closed.
func untilAccepted(ctx context.Context, l net.Listener) (context.Context, context.CancelFunc) {
	accepting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(maxAcceptDelay); waiting(l) && time.Now().Before(end); {
			<-tick.C
		}
	})
	return accepting, func() { stop(); cancel() }
}

// certified returns a server that passes connections to svc. Until the proxy has a
// certificate, the server is not ready, and connections wait to be accepted. If id is nil,
// certified returns svc itself.
func certified(id *identity.Identity, svc tcplayer.Server) tcplayer.Server {
	if id == nil {
		return svc
	}
	return &certifiedServer{svc, id}
}

// certifiedServer is a server that is ready when id has a certificate and the embedded
// Server is ready.
type certifiedServer struct {
	tcplayer.Server
	id *identity.Identity
}

func (c *certifiedServer) Ready(ctx context.Context) error {
	if err := c.id.Ready(ctx); err != nil {
		return err
	}
	return c.Server.Ready(ctx)
}

func (c *certifiedServer) Next() tcplayer.Server { return c.Server }
