package linkerd

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// policyServer is a policy controller. serve plays each stream.
type policyServer struct {
	outbound.UnimplementedOutboundPoliciesServer
	serve func(in *outbound.TrafficSpec, out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error
}

func (s *policyServer) Watch(in *outbound.TrafficSpec, out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
	return s.serve(in, out)
}

type policyStream = grpc.ServerStreamingServer[outbound.OutboundPolicy]

// policySource returns the source of policies of a server.
func policySource(t *testing.T, serve func(*outbound.TrafficSpec, policyStream) error, opts ...Option) profiles.Source {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	if serve != nil {
		outbound.RegisterOutboundPoliciesServer(server, &policyServer{serve: serve})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	opts = append([]Option{WithBackoff(layer.Backoff{Min: time.Millisecond, Max: time.Millisecond})}, opts...)
	return NewPolicies(dial(t, listener.Addr().String()), `{"ns":"ns","pod":"web-1"}`, opts...)
}

// silent keeps a stream open without a message.
func silent(_ *outbound.TrafficSpec, out policyStream) error {
	<-out.Context().Done()
	return out.Context().Err()
}

// always sends a message and keeps the stream open.
func always(m *outbound.OutboundPolicy) func(*outbound.TrafficSpec, policyStream) error {
	return func(in *outbound.TrafficSpec, out policyStream) error {
		if err := out.Send(m); err != nil {
			return err
		}
		return silent(in, out)
	}
}

func withBackend(name string) *outbound.OutboundPolicy {
	return http2(&outbound.HttpRoute{
		Metadata: resource("HTTPRoute", name, 0), Rules: []*outbound.HttpRoute_Rule{{Backends: first(balancer(name))}},
	})
}

func TestPoliciesRequest(t *testing.T) {
	specs := make(chan *outbound.TrafficSpec, 10)
	source := policySource(t, func(in *outbound.TrafficSpec, out policyStream) error {
		specs <- in
		return always(withBackend("web"))(in, out)
	})
	for _, target := range []string{"10.0.0.1:80", "[fd00::1]:80", "web.ns.svc.cluster.local:80"} {
		next, stop := iter.Pull2(source.Watch(t.Context(), target))
		p, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		assert.Equal(t, "HTTPRoute.ns.web", p.Routes[0].Name)
		stop()
		spec := <-specs
		assert.JSONEq(t, `{"ns":"ns","pod":"web-1"}`, spec.GetSourceWorkload())
		switch target {
		case "10.0.0.1:80":
			assert.EqualValues(t, 10<<24+1, spec.GetAddr().GetIp().GetIpv4())
			assert.EqualValues(t, 80, spec.GetAddr().GetPort())
		case "[fd00::1]:80":
			assert.Equal(t, uint64(0xfd)<<56, spec.GetAddr().GetIp().GetIpv6().GetFirst())
			assert.EqualValues(t, 1, spec.GetAddr().GetIp().GetIpv6().GetLast())
		default:
			assert.Equal(t, target, spec.GetAuthority())
		}
	}
}

// A lost stream is opened again, and an equal message is the same profile.
func TestPoliciesReconnect(t *testing.T) {
	source := policySource(t, func(_ *outbound.TrafficSpec, out policyStream) error {
		if err := out.Send(withBackend("web")); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "restart")
	})
	next, stop := iter.Pull2(source.Watch(t.Context(), "web:80"))
	defer stop()
	p, err, _ := next()
	require.NoError(t, err)
	_, err, _ = next()
	require.ErrorContains(t, err, "restart")
	again, err, _ := next()
	require.NoError(t, err)
	assert.Same(t, p, again)
}

func TestPoliciesFinalStatus(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.Unimplemented, codes.InvalidArgument, codes.FailedPrecondition} {
		source := policySource(t, func(*outbound.TrafficSpec, policyStream) error { return status.Error(code, "no") })
		for p, err := range source.Watch(t.Context(), "web:80") {
			require.Nil(t, p)
			require.ErrorIs(t, err, profiles.ErrNoProfile, code)
		}
	}
}

// logged is a log that tests read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) warnings() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), "level=WARN")
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// profileOf returns a source with one profile for each target.
func profileOf(p *profiles.Profile) *profiles.Static {
	var s profiles.Static
	for _, target := range []string{"a:80", "b:80", "c:80"} {
		s.Set(target, p)
	}
	return &s
}

// firstOf returns the first profile that a source has for a target.
func firstOf(t *testing.T, s profiles.Source, target string) *profiles.Profile {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for p, err := range s.Watch(ctx, target) {
		require.NoError(t, err)
		return p
	}
	require.Fail(t, "no profile")
	return nil
}

func TestPreferPrecedence(t *testing.T) {
	for _, tt := range []struct {
		what    string
		profile *profiles.Profile
		policy  bool
	}{
		{"no profile", &profiles.Profile{}, true},
		{"a name", &profiles.Profile{Name: "web.ns.svc.cluster.local", OpaqueProtocol: true}, true},
		{"an endpoint", &profiles.Profile{Endpoint: &resolve.Endpoint{}}, true},
		{"routes without a name", &profiles.Profile{Routes: []profiles.Route{{}}}, true},
		{"routes", &profiles.Profile{Name: "web", Routes: []profiles.Route{{}}}, false},
		{"a split", &profiles.Profile{Name: "web", Targets: []profiles.Target{{Authority: "v1:80", Weight: 1}}}, false},
	} {
		var log logged
		s := Prefer(profileOf(tt.profile), policySource(t, always(withBackend("web"))), time.Minute, log.logger())
		p := firstOf(t, s, "a:80")
		if !tt.policy {
			assert.Same(t, tt.profile, p, tt.what)
			continue
		}
		require.NotNil(t, p.Policy, tt.what)
		assert.Equal(t, "Service.ns.web:80", p.Policy.Name, tt.what)
		assert.Equal(t, tt.profile.Name, p.Name, tt.what)
		assert.Equal(t, tt.profile.OpaqueProtocol, p.OpaqueProtocol, tt.what)
		assert.Zero(t, log.warnings(), tt.what)
	}
}

// Without a usable policy controller all targets have their profile, with at most one warning.
func TestPreferWithoutPolicies(t *testing.T) {
	for _, tt := range []struct {
		what     string
		serve    func(*outbound.TrafficSpec, policyStream) error
		warnings int
	}{
		{"no such service", nil, 1},
		{"not found", func(*outbound.TrafficSpec, policyStream) error { return status.Error(codes.NotFound, "no") }, 0},
		{"unimplemented", func(*outbound.TrafficSpec, policyStream) error { return status.Error(codes.Unimplemented, "no") }, 1},
		{"broken", func(*outbound.TrafficSpec, policyStream) error { return status.Error(codes.Internal, "no") }, 1},
		{"ends", func(*outbound.TrafficSpec, policyStream) error { return nil }, 1},
		{"silent", silent, 1},
		{"nonsense", always(&outbound.OutboundPolicy{}), 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var log logged
			profile := &profiles.Profile{Name: "web"}
			wait := time.Minute
			if tt.what == "silent" {
				wait = 200 * time.Millisecond
			}
			s := Prefer(profileOf(profile), policySource(t, tt.serve), wait, log.logger())
			start := time.Now()
			for _, target := range []string{"a:80", "b:80", "c:80"} {
				assert.Same(t, profile, firstOf(t, s, target))
			}
			assert.Less(t, time.Since(start), 10*time.Second)
			assert.Equal(t, tt.warnings, log.warnings(), log.text.String())
		})
	}
}

// A silent controller delays the first target only. A policy that arrives later takes effect, and
// stays current during an outage.
func TestPreferLatePolicy(t *testing.T) {
	var log logged
	send := make(chan *outbound.OutboundPolicy)
	end := make(chan struct{})
	source := policySource(t, func(_ *outbound.TrafficSpec, out policyStream) error {
		for {
			select {
			case m := <-send:
				if err := out.Send(m); err != nil {
					return err
				}
			case <-end:
				return status.Error(codes.Unavailable, "restart")
			case <-out.Context().Done():
				return out.Context().Err()
			}
		}
	})
	profile := &profiles.Profile{Name: "web"}
	s := Prefer(profileOf(profile), source, 50*time.Millisecond, log.logger())
	next, stop := iter.Pull2(s.Watch(t.Context(), "a:80"))
	defer stop()
	p, err, _ := next()
	require.NoError(t, err)
	require.Same(t, profile, p)
	require.Equal(t, 1, log.warnings())

	for _, name := range []string{"v1", "v2"} {
		go func() { send <- withBackend(name) }()
		p, err, _ = next()
		require.NoError(t, err)
		require.Equal(t, "HTTPRoute.ns."+name, p.Routes[0].Name)
	}
	end <- struct{}{}
	go func() { send <- withBackend("v3") }() // received by the next stream
	p, err, _ = next()
	require.NoError(t, err)
	require.Equal(t, "HTTPRoute.ns.v3", p.Routes[0].Name)
	assert.Contains(t, log.text.String(), "answers again")
}

// A target that neither source has is reported as such.
func TestPreferNeither(t *testing.T) {
	no := func(*outbound.TrafficSpec, policyStream) error { return status.Error(codes.NotFound, "no") }
	s := Prefer(policySource(t, no), policySource(t, no), time.Minute, nil)
	var errs []error
	for _, err := range s.Watch(t.Context(), "a:80") {
		errs = append(errs, err)
	}
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], profiles.ErrNoProfile)
}

// An outage of the destination controller does not delay the policy, and without a policy the
// profile is awaited.
func TestPreferProfileOutage(t *testing.T) {
	var broken brokenSource
	s := Prefer(broken, policySource(t, always(withBackend("web"))), time.Minute, nil)
	var got *profiles.Profile
	failed := false
	for p, err := range s.Watch(t.Context(), "a:80") {
		if failed = failed || err != nil; p != nil {
			got = p
			break
		}
	}
	require.NotNil(t, got)
	assert.True(t, failed)
	assert.Equal(t, "HTTPRoute.ns.web", got.Routes[0].Name)

	late := Prefer(silentSource{}, policySource(t, always(withBackend("web"))), 50*time.Millisecond, nil)
	assert.Equal(t, "HTTPRoute.ns.web", firstOf(t, late, "a:80").Routes[0].Name)

	no := func(*outbound.TrafficSpec, policyStream) error { return status.Error(codes.NotFound, "no") }
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for p := range Prefer(broken, policySource(t, no), time.Minute, nil).Watch(ctx, "a:80") {
		require.Nil(t, p)
	}
}

// lateSource yields a profile after a second.
type lateSource struct{ profile *profiles.Profile }

func (l lateSource) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		time.Sleep(time.Second)
		yield(l.profile, nil)
	}
}

// A policy that arrives after the wait does not wait for the profile either.
func TestPreferLatePolicyWithoutProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := &profiles.Profile{Policy: &profiles.Policy{Name: "web"}}
		assert.Same(t, policy, firstOf(t, Prefer(silentSource{}, lateSource{policy}, time.Millisecond, nil), "a:80"))
	})
}

// A panic of a source is an outage of that source.
func TestPreferPanic(t *testing.T) {
	profile := &profiles.Profile{Name: "web.test"}
	assert.Same(t, profile, firstOf(t, Prefer(profileOf(profile), panickingSource{}, time.Minute, nil), "a:80"))
	for _, err := range Prefer(panickingSource{}, silentSource{}, time.Minute, nil).Watch(t.Context(), "a:80") {
		require.ErrorContains(t, err, "boom")
		break
	}
}

type panickingSource struct{}

func (panickingSource) Watch(context.Context, string) iter.Seq2[*profiles.Profile, error] {
	return func(func(*profiles.Profile, error) bool) { panic("boom") }
}

// brokenSource has an outage.
type brokenSource struct{}

func (brokenSource) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		if yield(nil, errors.New("away")) {
			<-ctx.Done()
		}
	}
}

// silentSource has no profile yet.
type silentSource struct{}

func (silentSource) Watch(ctx context.Context, _ string) iter.Seq2[*profiles.Profile, error] {
	return func(func(*profiles.Profile, error) bool) { <-ctx.Done() }
}
