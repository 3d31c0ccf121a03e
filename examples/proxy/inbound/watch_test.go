package inbound

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap"
)

// watchers is a controller that sends one policy on each stream and ends the stream after some
// time. It counts the streams.
type watchers struct {
	pb.InboundServerPoliciesClient
	after   time.Duration
	streams int
}

func (w *watchers) WatchPort(
	ctx context.Context, _ *pb.PortSpec, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.Server], error) {
	w.streams++
	return &watcher{ctx: ctx, after: w.after}, nil
}

type watcher struct {
	grpc.ServerStreamingClient[pb.Server]
	ctx   context.Context
	after time.Duration
	sent  bool
}

func (w *watcher) Recv() (*pb.Server, error) {
	if !w.sent {
		w.sent = true
		return &pb.Server{Labels: map[string]string{"name": "x"}, Protocol: &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Opaque_{}}}, nil
	}
	select {
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	case <-time.After(w.after):
		return nil, io.EOF
	}
}

// Streams end at their time limits, or because the controller limits their age. Neither is an
// outage, so neither is logged.
func TestWatchRecycled(t *testing.T) {
	for name, c := range map[string]struct {
		limits stream.Limits
		after  time.Duration
	}{
		"idle":     {stream.Limits{Idle: 5 * time.Minute}, 100 * time.Hour},
		"lifetime": {stream.Limits{Lifetime: 5 * time.Minute}, 100 * time.Hour},
		"ended":    {stream.Limits{}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				in := newInbound(Config{
					Inbound: settings.Inbound{DefaultPolicy: settings.Deny}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
					Control:    settings.Control{Connect: settings.Connect{Backoff: backoff.Backoff{Min: time.Second, Max: time.Second}}},
					Controller: unconnected{}, Log: slog.New(slog.NewTextHandler(&log, nil)),
				})
				ctx, cancel := context.WithCancel(t.Context())
				in.policies = newPolicies(ctx, in)
				controller := &watchers{after: c.after}
				in.policies.client, in.policies.limits = controller, c.limits
				in.policies.acquire(80)
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Greater(t, controller.streams, 8)
				require.Empty(t, log.String())
				cancel()
			})
		})
	}
}

// lockedLog calls during for each record.
type lockedLog struct {
	slog.Handler
	during func()
}

func (lockedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l lockedLog) Handle(context.Context, slog.Record) error { l.during(); return nil }

// A slow log does not delay new connections while a changed policy closes others.
func TestTerminateWithoutLock(t *testing.T) {
	var policy *portPolicy
	logged := 0
	in := newInbound(Config{
		Inbound: settings.Inbound{DefaultPolicy: settings.AllUnauthenticated}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
		Controller: unconnected{},
		Log: slog.New(lockedLog{during: func() {
			logged++
			require.True(t, policy.openMu.TryLock())
			policy.openMu.Unlock()
		}}),
	})
	in.policies = newPolicies(t.Context(), in)
	policy = in.policies.acquire(80)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, i := policy.add(&openConn{client: &client{addr: netip.MustParseAddr("10.0.0.1")}, cancel: cancel})
	require.Zero(t, i)
	policy.set(in.complete(t.Context(), &serverPolicy{resource: meters.DefaultResource("deny")}))
	require.ErrorContains(t, context.Cause(ctx), "unauthorized connection on default/deny")
	require.Equal(t, 1, logged)
}
