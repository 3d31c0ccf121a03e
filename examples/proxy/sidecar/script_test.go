package sidecar_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// script is a controller that a test controls. It has profiles by target, which are empty by
// default. The test responds to each query for endpoints.
type script struct {
	destination.UnimplementedDestinationServer

	addr  string
	asked chan *query

	mu       sync.Mutex
	profiles map[string]*destination.DestinationProfile
	refused  map[string]error // errors for profiles
	changed  chan struct{}    // closed when profiles change
}

// query is an open call to Get.
type query struct {
	target  string
	updates chan *destination.Update
	ends    chan error // nil: the stream ends without an error
}

// soon is how long a test waits for an event on a busy machine.
const soon = 2 * time.Minute

func newScript(t testing.TB) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveScript(t, l)
}

func serveScript(t testing.TB, l net.Listener) *script {
	t.Helper()
	s := &script{
		addr: l.Addr().String(), asked: make(chan *query, 100),
		profiles: map[string]*destination.DestinationProfile{}, refused: map[string]error{}, changed: make(chan struct{}),
	}
	srv := grpc.NewServer()
	destination.RegisterDestinationServer(srv, s)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; !errors.Is(err, grpc.ErrServerStopped) { // a test may end before Serve begins
			require.NoError(t, err)
		}
	})
	return s
}

// Get passes the query to the test.
func (s *script) Get(in *destination.GetDestination, out grpc.ServerStreamingServer[destination.Update]) error {
	q := &query{in.GetPath(), make(chan *destination.Update), make(chan error)}
	s.asked <- q
	for {
		select {
		case u := <-q.updates:
			if err := out.Send(u); err != nil {
				return err
			}
		case err := <-q.ends:
			return err
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// GetProfile sends the current profile and all later ones.
func (s *script) GetProfile(
	in *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile],
) error {
	var last *destination.DestinationProfile
	for {
		s.mu.Lock()
		p, changed, err := s.profiles[in.GetPath()], s.changed, s.refused[in.GetPath()]
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if p == nil {
			p = &destination.DestinationProfile{}
		}
		if p != last {
			if err := out.Send(p); err != nil {
				return err
			}
		}
		last = p
		select {
		case <-changed:
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (s *script) profile(target string, p *destination.DestinationProfile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles[target] = p
	close(s.changed)
	s.changed = make(chan struct{})
}

// refuse makes the controller respond to profile queries for a target with an error.
func (s *script) refuse(target string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[target] = err
}

// next returns the next query, which must be for target.
func (s *script) next(t testing.TB, target string) *query {
	t.Helper()
	select {
	case q := <-s.asked:
		require.Equal(t, target, q.target)
		return q
	case <-time.After(soon):
		require.Fail(t, "no request for "+target)
		return nil
	}
}

// none requires that there was no query for endpoints.
func (s *script) none(t testing.TB) {
	t.Helper()
	select {
	case q := <-s.asked:
		require.Fail(t, "asked for "+q.target)
	default:
	}
}

func (q *query) say(t testing.TB, u *destination.Update) {
	t.Helper()
	select {
	case q.updates <- u:
	case <-time.After(soon):
		require.Fail(t, "the query has ended")
	}
}

func (q *query) end(t testing.TB, err error) {
	t.Helper()
	select {
	case q.ends <- err:
	case <-time.After(soon):
		require.Fail(t, "the query has ended")
	}
}

func (q *query) add(t testing.TB, endpoints ...*destination.WeightedAddr) {
	t.Helper()
	q.say(t, &destination.Update{Update: &destination.Update_Add{Add: &destination.WeightedAddrSet{Addrs: endpoints}}})
}

func (q *query) noEndpoints(t testing.TB, exists bool) {
	t.Helper()
	q.say(t, &destination.Update{Update: &destination.Update_NoEndpoints{NoEndpoints: &destination.NoEndpoints{Exists: exists}}})
}

// wireAddr converts host:port to an API message.
func wireAddr(addr string) *apinet.TcpAddress {
	addrPort := netip.MustParseAddrPort(addr)
	ip := addrPort.Addr().As4()
	v4 := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
	return &apinet.TcpAddress{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{Ipv4: v4}}, Port: uint32(addrPort.Port())}
}

// endpointAt returns an endpoint in cleartext.
func endpointAt(addr string, change ...func(*destination.WeightedAddr)) *destination.WeightedAddr {
	e := &destination.WeightedAddr{Addr: wireAddr(addr), Weight: 10000, ProtocolHint: &destination.ProtocolHint{}}
	for _, f := range change {
		f(e)
	}
	return e
}

// proves puts an endpoint behind a proxy with this identity.
func proves(identity string) func(*destination.WeightedAddr) {
	return func(e *destination.WeightedAddr) {
		e.TlsIdentity = &destination.TlsIdentity{Strategy: &destination.TlsIdentity_DnsLikeIdentity_{
			DnsLikeIdentity: &destination.TlsIdentity_DnsLikeIdentity{Name: identity},
		}}
	}
}

// speaksH2 hints that the endpoint's proxy accepts HTTP/1 over HTTP/2.
func speaksH2(e *destination.WeightedAddr) {
	e.ProtocolHint.Protocol = &destination.ProtocolHint_H2_{H2: &destination.ProtocolHint_H2{}}
}

// isOpaque hints that the endpoint's protocol must not be detected.
func isOpaque(e *destination.WeightedAddr) {
	e.ProtocolHint.Protocol = &destination.ProtocolHint_Opaque_{Opaque: &destination.ProtocolHint_Opaque{}}
}

// direct hints that the endpoint's proxy accepts connections at its own address.
func direct(proxy string) func(*destination.WeightedAddr) {
	return func(e *destination.WeightedAddr) {
		e.ProtocolHint.OpaqueTransport = &destination.ProtocolHint_OpaqueTransport{
			InboundPort: uint32(netip.MustParseAddrPort(proxy).Port()),
		}
	}
}

// errInvalid is a controller's error for an unknown target.
var errInvalid = status.Error(codes.InvalidArgument, "that is no service")
