package controller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/wire"
)

// outboundServer implements the OutboundPolicies API.
type outboundServer struct {
	outbound.UnimplementedOutboundPoliciesServer
	*Controller
}

// Get returns the outbound policy for the name or address in spec. It fails with NotFound if
// there is none.
func (s *outboundServer) Get(_ context.Context, spec *outbound.TrafficSpec) (*outbound.OutboundPolicy, error) {
	t, err := trafficTarget(spec)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if msg := s.entry(t).outbound(); msg != nil {
		return msg, nil
	}
	return nil, s.unknown(t.String())
}

// Watch streams the outbound policy for the name or address in spec, as a whole at the start and
// after each change. It fails with NotFound if there is no policy, which makes proxies fall back
// to the profile.
func (s *outboundServer) Watch(spec *outbound.TrafficSpec, stream grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
	t, err := trafficTarget(spec)
	if err != nil {
		return err
	}
	// first and send are called for this stream only: first under the controller's lock, send without it.
	first := func() *outbound.OutboundPolicy { return s.entry(t).outbound() }
	send := func(msg *outbound.OutboundPolicy) error {
		if msg == nil {
			return status.Errorf(codes.NotFound, "%s has no policy", t)
		}
		return stream.Send(msg)
	}
	return serve(stream.Context(), s.Controller, s.policies, "OutboundPolicies.Watch", t, first, send)
}

// unknown returns the error for a target without a policy: NotFound, or Unavailable if no
// configuration has been loaded yet. The caller must hold s.mu.
func (s *outboundServer) unknown(name string) error {
	if !s.loaded {
		return status.Error(codes.Unavailable, "the controller has not loaded a configuration")
	}
	return status.Errorf(codes.NotFound, "%s has no policy", name)
}

// trafficTarget returns the name or address in spec, and the client's namespace. It fails with
// InvalidArgument if the name or address is missing or invalid.
func trafficTarget(spec *outbound.TrafficSpec) (target, error) {
	var t target
	var err error
	switch requested := spec.GetTarget().(type) {
	case *outbound.TrafficSpec_Addr:
		var addr netip.AddrPort
		if addr, err = addrOf(requested.Addr); err == nil {
			t, err = addrTarget(addr)
		}
	case *outbound.TrafficSpec_Authority:
		t, err = parseTarget(requested.Authority)
	default:
		err = errors.New("is required")
	}
	if err != nil {
		return target{}, status.Errorf(codes.InvalidArgument, "target %v", err)
	}
	// Policies may depend on the client's namespace, but not on its node.
	t.client.Namespace = workload(spec.GetSourceWorkload()).Namespace
	return t, nil
}

// addrOf parses an address in an API message.
func addrOf(a *apinet.TcpAddress) (netip.AddrPort, error) {
	ip, err := wire.IP(a.GetIp())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address: %w", err)
	}
	if a.GetPort() > math.MaxUint16 {
		return netip.AddrPort{}, fmt.Errorf("port %d must be from 1 to %d", a.GetPort(), math.MaxUint16)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(a.GetPort())), nil
}

// inboundServer implements the InboundServerPolicies API.
type inboundServer struct {
	inbound.UnimplementedInboundServerPoliciesServer
	*Controller
}

// GetPort returns the inbound policy for the port in spec.
func (s *inboundServer) GetPort(_ context.Context, spec *inbound.PortSpec) (*inbound.Server, error) {
	key, err := keyOf(spec)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Before the first configuration, the default policy could permit too much.
	if !s.loaded {
		return nil, status.Error(codes.Unavailable, "the controller has not loaded a configuration")
	}
	return s.serverOf(key), nil
}

// WatchPort streams the inbound policy for the port in spec, as a whole at the start and after
// each change.
func (s *inboundServer) WatchPort(spec *inbound.PortSpec, stream grpc.ServerStreamingServer[inbound.Server]) error {
	key, err := keyOf(spec)
	if err != nil {
		return err
	}
	// first is called under the controller's lock.
	first := func() *inbound.Server { return s.serverOf(key) }
	return serve(stream.Context(), s.Controller, s.servers, "InboundServerPolicies.WatchPort", key, first, stream.Send)
}

// keyOf returns the workload and port in spec. It fails with InvalidArgument if the port is
// invalid.
func keyOf(spec *inbound.PortSpec) (serverKey, error) {
	if p := spec.GetPort(); p == 0 || p > math.MaxUint16 {
		return serverKey{}, status.Errorf(codes.InvalidArgument, "port %d must be from 1 to %d", p, math.MaxUint16)
	}
	return serverKey{spec.GetWorkload(), uint16(spec.GetPort())}, nil
}

func (k serverKey) String() string { return strconv.Itoa(int(k.port)) + " of " + k.workload }
