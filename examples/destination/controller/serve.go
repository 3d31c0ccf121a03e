package controller

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// defaultStopTimeout is how long [Controller.Serve] waits for clients to close their connections.
// It then closes them.
const defaultStopTimeout = 2 * time.Second

// minPing is the minimum interval between keep-alive PINGs of a client. The server closes
// the connection of a client with a shorter interval. The default of gRPC is five minutes,
// which is longer than the intervals of usual clients.
const minPing = 5 * time.Second

// Serve accepts connections in cleartext from lis until ctx ends. It then stops the
// controller, closes lis and all connections, and returns nil after all streams have ended.
// It returns an error only if lis fails before ctx ends.
func (c *Controller) Serve(ctx context.Context, lis net.Listener) error {
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
	c.Register(server)
	healthpb.RegisterHealthServer(server, health.NewServer())
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		c.Stop()
		hard := time.AfterFunc(c.stopTimeout, server.Stop)
		defer hard.Stop()
		server.GracefulStop()
	})
	err := server.Serve(lis)
	if cancel() {
		c.Stop()
		server.Stop()
	} else {
		<-ended
	}
	c.senders.Wait()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve destinations on %s: %w", lis.Addr(), err)
	}
	return nil
}
