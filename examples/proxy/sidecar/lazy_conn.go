package sidecar

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// lazyConn connects to the control plane when the proxy has its first certificate. Calls wait for
// that. An earlier connection would never get the client identity, because TLS presents it only in
// the handshake. Linkerd's proxy waits too.
type lazyConn struct {
	id   *identity.Identity
	addr string
	make func() (controlPlane, error)

	mu     sync.Mutex
	made   controlPlane // nil until the proxy has a certificate
	closed bool         // Close was called, so that no connection is made any more
}

// afterCertificate returns a function that returns a [lazyConn] for id. That function reports an
// invalid cfg immediately.
func afterCertificate(id *identity.Identity) func(context.Context, grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return func(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
		// The context has ended, so newConn makes no connection.
		ended, cancel := context.WithCancel(ctx)
		cancel()
		check, err := newConn(ended, cfg) // only validates cfg, because ctx has ended
		if err != nil {
			return nil, err
		}
		a := &lazyConn{id: id, addr: cfg.Addr, make: func() (controlPlane, error) { return newConn(ctx, cfg) }}
		// Connect as soon as there is a certificate, so that the first call does not wait for the handshake.
		go func() { _, _ = a.conn(ctx) }()
		return a, check.Close(ended)
	}
}

// conn waits until the proxy has a certificate. Then it returns the connection, and makes it if
// necessary.
func (a *lazyConn) conn(ctx context.Context) (controlPlane, error) {
	// Ready blocks until the first certificate. Its error becomes a gRPC status, as callers expect.
	if err := a.id.Ready(ctx); err != nil {
		return nil, status.Error(status.FromContextError(ctx.Err()).Code(), err.Error())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.made != nil:
		return a.made, nil
	case a.closed: // by Close, while Ready waited
		return nil, status.Error(codes.Canceled, "the proxy has ended")
	}
	conn, err := a.make()
	if err == nil {
		a.made = conn
	}
	return conn, err
}

// Invoke implements [grpc.ClientConnInterface]. It waits until the proxy has a certificate.
func (a *lazyConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := a.conn(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements [grpc.ClientConnInterface]. It waits until the proxy has a certificate.
func (a *lazyConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	conn, err := a.conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// Close closes the connection, if it exists. Calls that still wait for a certificate will fail.
func (a *lazyConn) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	conn := a.made
	a.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close(ctx)
}

// Describe shows the connection's state, or that it waits for a certificate.
func (a *lazyConn) Describe() layer.Node {
	a.mu.Lock()
	conn := a.made
	a.mu.Unlock()
	if conn != nil {
		return conn.Describe()
	}
	return layer.Node{Name: "origin", State: layer.State{
		{Key: "authority", Value: a.addr}, {Key: "waits_for", Value: "the certificate of this proxy"},
	}}
}
