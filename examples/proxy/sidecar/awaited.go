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

// awaited is a connection to the control plane that is made once the proxy can
// prove who it is, as in linkerd's proxy: one that was made before would be
// nobody's, and stay so for as long as it lasts. Who calls before that waits.
type awaited struct {
	id   *identity.Identity
	addr string
	make func() (controlPlane, error)

	mu     sync.Mutex
	made   controlPlane // nil: not yet
	closed bool
}

// onceCertified connects when id has a certificate, or ctx has ended. An address
// that is none is told of at once.
func onceCertified(id *identity.Identity) func(context.Context, grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return func(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
		never, cancel := context.WithCancel(ctx)
		cancel()
		tried, err := atOnce(never, cfg) // connects nowhere, but looks at cfg
		if err != nil {
			return nil, err
		}
		a := &awaited{id: id, addr: cfg.Addr, make: func() (controlPlane, error) { return atOnce(ctx, cfg) }}
		go func() { _, _ = a.conn(ctx) }()
		return a, tried.Close(never)
	}
}

// conn waits for the certificate.
func (a *awaited) conn(ctx context.Context) (controlPlane, error) {
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

// Invoke makes a unary call.
func (a *awaited) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := a.conn(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream.
func (a *awaited) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	conn, err := a.conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// Close closes what was made, and has nothing be made any more.
func (a *awaited) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	made := a.made
	a.mu.Unlock()
	if made == nil {
		return nil
	}
	return made.Close(ctx)
}

// Describe shows the connection, or what it waits for.
func (a *awaited) Describe() layer.Node {
	a.mu.Lock()
	made := a.made
	a.mu.Unlock()
	if made != nil {
		return made.Describe()
	}
	return layer.Node{Name: "origin", State: layer.State{
		{Key: "authority", Value: a.addr}, {Key: "waits_for", Value: "a certificate of our own"},
	}}
}
