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

// lazyConn is a connection to the control plane that is made when the proxy has its first
// certificate. Calls wait for the certificate. A connection must not be made earlier,
// because it keeps the client identity with which it was made. Linkerd's proxy does the
// same.
type lazyConn struct {
	id   *identity.Identity
	addr string
	make func() (controlPlane, error) // makes the connection

	mu     sync.Mutex
	made   controlPlane // nil until the proxy has a certificate
	closed bool
}

// afterCertificate returns a function that returns a [lazyConn], which connects when id
// has a certificate. The function validates its argument cfg at once, and returns an
// error for an invalid cfg.
func afterCertificate(id *identity.Identity) func(context.Context, grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return func(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		check, err := newConn(ended, cfg) // validates cfg without a connection
		if err != nil {
			return nil, err
		}
		a := &lazyConn{id: id, addr: cfg.Addr, make: func() (controlPlane, error) { return newConn(ctx, cfg) }}
		go func() { _, _ = a.conn(ctx) }()
		return a, check.Close(ended)
	}
}

// conn waits until the proxy has a certificate. It then makes the connection if it does not
// exist yet, and returns it.
func (a *lazyConn) conn(ctx context.Context) (controlPlane, error) {
	if err := a.id.Ready(ctx); err != nil {
		return nil, status.Error(status.FromContextError(ctx.Err()).Code(), err.Error())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.made != nil:
		return a.made, nil
	case a.closed:
		return nil, status.Error(codes.Canceled, "the proxy has ended")
	}
	made, err := a.make()
	if err == nil {
		a.made = made
	}
	return made, err
}

// Invoke makes a unary call after the proxy has a certificate. It is part of
// [grpc.ClientConnInterface].
func (a *lazyConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := a.conn(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream after the proxy has a certificate. It is part of
// [grpc.ClientConnInterface].
func (a *lazyConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	conn, err := a.conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// Close closes the connection, if it has been made. Calls that still wait for a certificate
// then fail and make no connection.
func (a *lazyConn) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	made := a.made
	a.mu.Unlock()
	if made == nil {
		return nil
	}
	return made.Close(ctx)
}

// Describe shows the state of the connection, or that it waits for a certificate.
func (a *lazyConn) Describe() layer.Node {
	a.mu.Lock()
	made := a.made
	a.mu.Unlock()
	if made != nil {
		return made.Describe()
	}
	return layer.Node{Name: "origin", State: layer.State{
		{Key: "authority", Value: a.addr}, {Key: "waits_for", Value: "the certificate of this proxy"},
	}}
}
