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

// defaultStopTimeout is how long [Controller.Serve] waits for clients to close their connections
// before it closes them.
const defaultStopTimeout = 2 * time.Second

// minPing is the shortest interval between keep-alive PINGs that a client may use without being
// disconnected. gRPC's default of five minutes is longer than what clients usually use.
const minPing = 5 * time.Second

// Serve accepts cleartext connections on lis until ctx ends. It then stops the controller, closes
// lis and all connections, and returns nil once all streams have ended. It returns an error only if
// lis fails before ctx ends.
func (c *Controller) Serve(ctx context.Context, lis net.Listener) error {
	server := grpc.NewServer(
		// Stop and GracefulStop wait for the handlers, so that none of them runs after Serve.
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
	c.Register(server)
	healthpb.RegisterHealthServer(server, health.NewServer())
	ended := make(chan struct{})
	// The function runs in its own goroutine when ctx ends.
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		c.Stop()
		// A client that does not close its connection must not hold up the shutdown.
		hard := time.AfterFunc(c.stopTimeout, server.Stop)
		defer hard.Stop()
		server.GracefulStop()
	})
	err := server.Serve(lis)
	// cancel returns true if ctx has not ended, which means that lis has failed.
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
