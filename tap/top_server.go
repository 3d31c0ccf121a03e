package tap

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap/tappb"
)

// Top serves one client with rows. Its headers are sent at once: from then on
// every request that matches is counted.
func (o own) Top(req *tappb.TopRequest, stream grpc.ServerStreamingServer[tappb.TopResponse]) error {
	if err := o.server.access.permit(stream.Context()); err != nil {
		return refuse(codes.Unauthenticated, err)
	}
	c, err := o.server.reg.count(req)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	var sent error
	c.each(stream.Context(), o.server.down, func(m *tappb.TopResponse) bool {
		sent = stream.Send(m)
		return sent == nil
	})
	switch {
	case sent != nil:
		return sent
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	}
	return errDown
}
