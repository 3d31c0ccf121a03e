package controller

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// stopTimeout is the time for connections to close.
const stopTimeout = 2 * time.Second

// minPing is the minimum interval of a client's keep-alive PINGs. gRPC's default of five
// minutes would close the connections of clients that keep streams alive.
const minPing = 5 * time.Second

// Serve serves on a listener, in cleartext, until ctx ends. It then stops the controller,
// closes the listener and all connections, waits for all streams and goroutines, and
// returns nil.
func (c *Controller) Serve(ctx context.Context, lis net.Listener) error {
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
	c.Register(server)
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		c.Stop()
		hard := time.AfterFunc(stopTimeout, server.Stop)
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
