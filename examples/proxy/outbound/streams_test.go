package outbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// silence is a controller that accepts streams and calls but sends nothing.
type silence struct {
	grpc.ClientConnInterface
	streams int
}

func (c *silence) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams++
	return &silent{ctx: ctx}, nil
}

func (c *silence) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

type silent struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *silent) SendMsg(any) error        { return nil }
func (s *silent) CloseSend() error         { return nil }
func (s *silent) Context() context.Context { return s.ctx }

func (s *silent) RecvMsg(any) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

// Streams for endpoints and profiles are reopened if the controller sends nothing within the
// limits, unless it is on this machine.
func TestSilentController(t *testing.T) {
	limits := settings.StreamLimits{Initial: 3 * time.Second}
	for name, tt := range map[string]struct {
		at       string
		limits   settings.StreamLimits
		reopened bool
	}{
		"limit":        {"dst.linkerd:8086", limits, true},
		"no limit":     {"dst.linkerd:8086", settings.StreamLimits{}, false},
		"this machine": {"127.0.0.1:8086", limits, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				endpoints, profiles := new(silence), new(silence)
				c := Config{Control: settings.Control{
					Destination: settings.Controller{Addr: tt.at}, Streams: tt.limits,
					GetSuffixes: settings.Suffixes{""}, ProfileSuffixes: settings.Suffixes{""},
				}}
				c.Controller = endpoints
				r := newResolver(c)
				p := c.Control.Profiles(profiles, nil)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range r.Resolve(ctx, "web.example:80") {
					}
				}()
				for range p.Watch(ctx, "web.example:80") {
				}
				<-done
				assert.Equal(t, tt.reopened, endpoints.streams > 1, "endpoints")
				assert.Equal(t, tt.reopened, profiles.streams > 1, "profiles")
			})
		})
	}
}

// oneProfile is a controller that sends a profile immediately, and then nothing more.
type oneProfile struct{ silence }

func (c *oneProfile) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &profileStream{silent: silent{ctx: ctx}}, nil
}

type profileStream struct {
	silent
	sent bool
}

func (s *profileStream) RecvMsg(m any) error {
	if s.sent {
		return s.silent.RecvMsg(m)
	}
	s.sent = true
	proto.Merge(m.(proto.Message), &destination.DestinationProfile{FullyQualifiedName: "web"})
	return nil
}

// A silent policy controller delays a new target's profile by four fifths of ProfileInitial.
func TestSilentPolicyController(t *testing.T) {
	for initial, wait := range map[time.Duration]time.Duration{10 * time.Second: 8 * time.Second, 10 * time.Millisecond: minPolicyWait} {
		synctest.Test(t, func(t *testing.T) {
			c := Config{Controller: new(oneProfile), Policies: new(silence), Control: settings.Control{
				ProfileInitial: initial, ProfileSuffixes: settings.Suffixes{""},
			}}
			start := time.Now()
			received := 0
			for p, err := range newSource(c).Watch(t.Context(), "web.example:80") {
				received++
				assert.NoError(t, err)
				assert.NotNil(t, p)
				break
			}
			assert.Equal(t, 1, received)
			assert.Equal(t, wait, time.Since(start))
		})
	}
}
