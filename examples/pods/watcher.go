package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	id "github.com/gotower/gotower/layer/tcplayer/identity"
)

// watcher is a client of the proxies' taps. It has a certificate of its own.
type watcher struct {
	own *id.Identity
}

// newWatcher returns a client of taps with a certificate for the account. It requests the
// certificate from the CA as a proxy does. The name of the directory with its private key
// contains the argument name.
func (r *running) newWatcher(ctx context.Context, account, name string) (*watcher, error) {
	dir, token, err := r.credentials(ctx, account, name, root)
	if err != nil {
		return nil, err
	}
	cfg, err := id.Load(dir, r.anchors(), token, identity(account), "")
	if err != nil {
		return nil, err
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	w := &watcher{}
	if w.own, err = id.New(cfg); err != nil {
		return nil, err
	}
	conn, err := dial(netip.AddrPortFrom(r.control.addr, caPort), w.own.Bootstrap("", r.control.identity()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	var certifying errgroup.Group
	certifying.Go(func() error { return w.own.Run(ctx, conn) })
	err = w.own.Ready(ctx)
	cancel() // the watcher never renews its certificate
	return w, errors.Join(err, certifying.Wait())
}

// tap connects to the tap server of the proxy of the pod p.
func (w *watcher) tap(p pod) (*grpc.ClientConn, error) {
	return dial(netip.AddrPortFrom(p.addr, tapPort), w.own.Client("", p.identity()))
}

// dial returns a gRPC connection to the given address. If cfg is nil, the connection uses
// cleartext. Otherwise it uses TLS without ALPN, as linkerd's proxies do. It does not use gRPC's
// own TLS credentials, because they require ALPN.
func dial(to netip.AddrPort, cfg *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+to.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil || cfg == nil {
				return raw, err
			}
			conn := tls.Client(raw, cfg)
			if err := conn.HandshakeContext(ctx); err != nil {
				raw.Close()
				return nil, fmt.Errorf("%s: %w", addr, err)
			}
			return conn, nil
		}))
}
