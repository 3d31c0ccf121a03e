package ca

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// minPing is the minimum interval of a client's keep-alive PINGs.
const minPing = 5 * time.Second

// Serve serves the identity API on l until ctx ends, and closes l. With a name, which must
// be DNS-like, it serves TLS with a certificate that it issues and renews itself. Without
// a name it serves cleartext. A name that a does not certify is an error at once.
func Serve(ctx context.Context, l net.Listener, a *Authority, check Check, name string) error {
	group, ctx := errgroup.WithContext(ctx)
	if name != "" {
		own, err := a.identity(name)
		if err == nil {
			err = a.owns(name) // Run would retry forever
		}
		if err != nil {
			_ = l.Close()
			return err
		}
		itself := local{service{authority: a, check: func(string, []byte) error { return nil }}}
		group.Go(func() error { return own.Run(ctx, itself) })
		// Below gRPC, whose own TLS rejects clients without ALPN, such as linkerd's
		// proxies.
		l = tls.NewListener(l, own.Server("h2"))
	}
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
	Register(server, a, butOwn(name, check))
	group.Go(func() error {
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("ca: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop() // calls are short, and clients retry
		return nil
	})
	return group.Wait()
}

// identity returns the identity for the TLS server of the authority itself.
func (a *Authority) identity(name string) (*identity.Identity, error) {
	key, csr, err := identity.Request(name)
	if err != nil {
		return nil, err
	}
	return identity.New(identity.Config{
		Name: name, Roots: a.anchors, Key: key, CSR: csr,
		Token: func() ([]byte, error) { return []byte("itself"), nil }, Log: a.Log,
		MinRefresh: min(a.Lifetime/2, defaultMinRefresh),
	})
}

// defaultMinRefresh is the default of the minimum time before a proxy renews its
// certificate. Certificates with a shorter lifetime need a smaller value.
const defaultMinRefresh = 10 * time.Second

// local is a client connection to a CA in this process.
type local struct{ service service }

func (l local) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	req, ok := args.(*pb.CertifyRequest)
	to, fits := reply.(*pb.CertifyResponse)
	if !ok || !fits {
		return status.Errorf(codes.Unimplemented, "%s: unknown method", method)
	}
	rsp, err := l.service.Certify(ctx, req)
	if err != nil {
		return fmt.Errorf("ca: its own certificate: %w", err)
	}
	proto.Merge(to, rsp)
	return nil
}

func (local) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "%s: unknown method", method)
}
