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

// watcher is a client of the proxies' taps with its own certificate.
type watcher struct {
	own *id.Identity
}

// newWatcher returns a client for taps, with a certificate for the account that it requests from
// the CA like a proxy. The directory with its private key is named after name.
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
	// Bootstrap is the TLS configuration without a certificate, with which the first one is requested.
	conn, err := dial(netip.AddrPortFrom(r.control.addr, caPort), w.own.Bootstrap("", r.control.identity()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// Run renews the certificate until its context ends.
	ctx, cancel := context.WithCancel(ctx)
	var certifying errgroup.Group
	certifying.Go(func() error { return w.own.Run(ctx, conn) })
	err = w.own.Ready(ctx)
	cancel() // the watcher never renews its certificate
	return w, errors.Join(err, certifying.Wait())
}

// tap connects to the tap server of the proxy in the pod p.
func (w *watcher) tap(p pod) (*grpc.ClientConn, error) {
	return dial(netip.AddrPortFrom(p.addr, tapPort), w.own.Client("", p.identity()))
}

// dial returns a gRPC connection to target, in cleartext if cfg is nil. TLS is used without ALPN,
// as by linkerd's proxies, so gRPC's own TLS credentials will not do: they require ALPN.
func dial(target netip.AddrPort, cfg *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), // a proxy on a busy machine may close a slow handshake
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
