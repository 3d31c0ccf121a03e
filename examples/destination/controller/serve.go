package controller

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// stopWithin is how long connections may take to close in good order.
const stopWithin = 2 * time.Second

// minPing is how often a client may ask whether the connection lives. gRPC's
// default of five minutes cuts off clients that keep their streams alive.
const minPing = 5 * time.Second

// Serve answers on a listener, in cleartext, until ctx ends; then it stops the
// controller, closes the listener and every connection, and returns nil. When
// it returns, no stream and no goroutine is left.
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
		hard := time.AfterFunc(stopWithin, server.Stop)
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
	c.pumps.Wait()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve destinations on %s: %w", lis.Addr(), err)
	}
	return nil
}
