package inbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// silence is a controller that takes streams and says nothing.
type silence struct {
	grpc.ClientConnInterface
	streams int
}

func (c *silence) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams++
	return &silent{ctx: ctx}, nil
}

type silent struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *silent) SendMsg(any) error { return nil }
func (s *silent) CloseSend() error  { return nil }

func (s *silent) RecvMsg(any) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

// Streams of profiles are held to the limits of the settings.
func TestAControllerThatSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		controller := new(silence)
		source := newProfiles(Config{Controller: controller, Control: settings.Control{
			Destination: settings.Controller{Addr: "dst.linkerd:8086"}, Streams: settings.StreamLimits{Initial: 3 * time.Second},
			ProfileSuffixes: settings.Suffixes{""},
		}})
		for range source.Watch(ctx, "web.example:80") {
		}
		require.Greater(t, controller.streams, 1)
	})
}
