package controller

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const web = "web.test:80"

func TestGetSnapshot(t *testing.T) {
	c := New(nil)
	set(t, c, Config{Destinations: map[string]Destination{
		web: {
			Labels: map[string]string{"service": "web"},
			Endpoints: []Endpoint{
				{Addr: addr("10.0.0.1:8080"), Labels: map[string]string{"pod": "a"}, Protocol: H2, Identity: "web.id"},
				{Addr: addr("10.0.0.2:8080"), Weight: 5, Protocol: Opaque, Authority: "other:1", Identity: "spiffe://td/web", ServerName: "web.sni"},
			},
		},
		"empty.test:80":  {},
		"absent.test:80": {Absent: true},
	}})
	client := served(t, c)

	first := &pb.WeightedAddr{
		Addr: tcp(1, 8080), Weight: 10000, MetricLabels: map[string]string{"pod": "a"},
		ProtocolHint: &pb.ProtocolHint{Protocol: &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}},
		TlsIdentity: &pb.TlsIdentity{Strategy: &pb.TlsIdentity_DnsLikeIdentity_{
			DnsLikeIdentity: &pb.TlsIdentity_DnsLikeIdentity{Name: "web.id"},
		}},
		Http2: &pb.Http2ClientParams{KeepAlive: &pb.Http2ClientParams_KeepAlive{
			Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(3 * time.Second), WhileIdle: true,
		}},
	}
	second := &pb.WeightedAddr{
		Addr: tcp(2, 8080), Weight: 5,
		ProtocolHint:      &pb.ProtocolHint{Protocol: &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}},
		AuthorityOverride: &pb.AuthorityOverride{AuthorityOverride: "other:1"},
		TlsIdentity: &pb.TlsIdentity{
			Strategy:   &pb.TlsIdentity_UriLikeIdentity_{UriLikeIdentity: &pb.TlsIdentity_UriLikeIdentity{Uri: "spiffe://td/web"}},
			ServerName: &pb.TlsIdentity_DnsLikeIdentity{Name: "web.sni"},
		},
	}
	for _, path := range []string{web, "web.test", "WEB.test.:80"} {
		same(t, addition(map[string]string{"service": "web"}, first, second), recv(t, get(t, client, path)))
	}
	same(t, none(true), recv(t, get(t, client, "empty.test:80")))
	same(t, none(false), recv(t, get(t, client, "absent.test:80")))
	same(t, none(false), recv(t, get(t, client, "web.test:81")))
}

func TestGetFollowsChanges(t *testing.T) {
	c := New(nil)
	client := served(t, c)
	stream := get(t, client, web)
	// Nothing is known before the first Set; that the first message is its
	// state shows that the stream waited.
	set(t, c, one(web, Destination{Endpoints: endpointsAt("10.0.0.1:80", "10.0.0.2:80")}))
	same(t, addition(nil, plain(1, 80), plain(2, 80)), recv(t, stream))

	set(t, c, one(web, Destination{Endpoints: endpointsAt("10.0.0.2:80", "10.0.0.3:80")}))
	same(t, addition(nil, plain(3, 80)), recv(t, stream))
	same(t, removal(tcp(1, 80)), recv(t, stream))

	set(t, c, Config{})
	same(t, none(false), recv(t, stream))
	set(t, c, one("web.test", Destination{}))
	same(t, none(true), recv(t, stream))
	set(t, c, one("web.test", Destination{Endpoints: endpointsAt("10.0.0.9:80")}))
	same(t, addition(nil, plain(9, 80)), recv(t, stream))
}

// A change of one name sends nothing to streams of other names. A Set without changes sends
// nothing.
func TestUnchangedState(t *testing.T) {
	c := New(nil)
	both := func(a, b string) Config {
		return Config{Destinations: map[string]Destination{
			"a.test:80": {Endpoints: endpointsAt(a), Profile: &Profile{Name: "a.name"}},
			"b.test:80": {Endpoints: endpointsAt(b)},
		}}
	}
	set(t, c, both("10.0.0.1:80", "10.0.0.2:80"))
	client := served(t, c)
	stream, profile := get(t, client, "a.test:80"), getProfile(t, client, "a.test:80")
	recv(t, stream)
	recv(t, profile)

	set(t, c, both("10.0.0.1:80", "10.0.0.3:80"))
	set(t, c, both("10.0.0.1:80", "10.0.0.3:80"))
	set(t, c, both("10.0.0.4:80", "10.0.0.3:80"))
	same(t, addition(nil, plain(4, 80)), recv(t, stream))
	same(t, removal(tcp(1, 80)), recv(t, stream))

	changed := both("10.0.0.4:80", "10.0.0.3:80")
	changed.Destinations["a.test:80"].Profile.Opaque = true
	set(t, c, changed)
	same(t, &pb.DestinationProfile{FullyQualifiedName: "a.name", OpaqueProtocol: true}, recv(t, profile))
}

func TestGetProfile(t *testing.T) {
	c := New(nil)
	client := served(t, c)
	stream, address := getProfile(t, client, web), getProfile(t, client, "10.1.2.3:80")
	set(t, c, Config{})
	same(t, &pb.DestinationProfile{}, recv(t, stream))
	same(t, &pb.DestinationProfile{}, recv(t, address))

	set(t, c, Config{Destinations: map[string]Destination{
		web:        {},
		"10.1.2.3": {Profile: &Profile{Splits: []Split{{Authority: "x.test:80", Weight: 1}}}},
	}})
	same(t, &pb.DestinationProfile{FullyQualifiedName: "web.test"}, recv(t, stream))
	same(t, &pb.DestinationProfile{DstOverrides: []*pb.WeightedDst{{Authority: "x.test:80", Weight: 1}}}, recv(t, address))

	set(t, c, one(web, Destination{Absent: true}))
	same(t, &pb.DestinationProfile{}, recv(t, stream))
}

func TestInvalidPaths(t *testing.T) {
	c := New(nil)
	set(t, c, Config{})
	client := served(t, c)
	for _, path := range []string{"", "web.test:", "web.test:0", "web.test:99999", "a b:80", ":80", "1.2.3.400:80"} {
		st, n := ends(t, get(t, client, path))
		assert.Equal(t, codes.InvalidArgument, st.Code(), path)
		assert.Zero(t, n, path)
		st, _ = ends(t, getProfile(t, client, path))
		assert.Equal(t, codes.InvalidArgument, st.Code(), path)
	}
	for _, path := range []string{"10.0.0.1:80", "10.0.0.1", "[::1]:80", "::1"} {
		st, _ := ends(t, get(t, client, path))
		assert.Equal(t, codes.InvalidArgument, st.Code(), path)
		same(t, &pb.DestinationProfile{}, recv(t, getProfile(t, client, path)))
	}
}

// bulky returns a state. The change from another is a message of about 64 KiB.
func bulky(i int) Config {
	return one(web, Destination{
		Labels:    map[string]string{"n": strconv.Itoa(i), "bulk": strings.Repeat("x", 1<<16)},
		Endpoints: endpointsAt("10.0.0.1:80"),
	})
}

func TestSlowClientStreamEnds(t *testing.T) {
	c := New(nil)
	set(t, c, bulky(0))
	// Without a fixed window gRPC might make room for everything.
	client := served(t, c, grpc.WithStaticStreamWindowSize(1<<16), grpc.WithStaticConnWindowSize(1<<20))
	slow, other := get(t, client, web), getProfile(t, client, web)
	recv(t, slow)
	recv(t, other)

	const changes = 3 * queueLength
	for i := 1; i <= changes; i++ {
		set(t, c, bulky(i))
	}
	st, n := ends(t, slow)
	require.Equal(t, codes.ResourceExhausted, st.Code(), st.Message())
	require.Less(t, n, changes)

	again := recv(t, get(t, client, web))
	require.Equal(t, strconv.Itoa(changes), again.GetAdd().GetMetricLabels()["n"], "a new stream starts from the last state")
	set(t, c, Config{})
	same(t, &pb.DestinationProfile{}, recv(t, other))
}

// A handler ends at once, though its Send waits for a client that does not read.
func TestStopWithUnreadStreams(t *testing.T) {
	for what, tt := range map[string]struct {
		end  func(c *Controller)
		want codes.Code
	}{
		"too slow": {func(c *Controller) {
			for i := range 2 * queueLength {
				set(t, c, bulky(i))
			}
		}, codes.ResourceExhausted},
		"stopped": {(*Controller).Stop, codes.Unavailable},
	} {
		t.Run(what, func(t *testing.T) {
			c := New(nil)
			set(t, c, Config{})
			ctx, cancel := context.WithCancel(context.Background())
			defer c.senders.Wait()
			defer cancel()
			stream := &fakeStream{ctx: ctx, sending: make(chan struct{}, 1), sent: make(chan *pb.Update)}
			ended := make(chan error, 1)
			go func() { ended <- c.Get(&pb.GetDestination{Path: web}, stream) }()
			<-stream.sending
			tt.end(c)
			select {
			case err := <-ended:
				require.Equal(t, tt.want, status.Code(err))
			case <-time.After(patience):
				t.Fatal("the stream did not end")
			}
			require.Empty(t, c.updates)
		})
	}
}

// The same over a connection: gRPC ends the Send once the handler has returned.
func TestUnreadStream(t *testing.T) {
	var log record
	c := New(slog.New(slog.NewTextHandler(&log, nil)))
	set(t, c, bulky(0))
	client := served(t, c, grpc.WithStaticStreamWindowSize(1<<16))
	stream := get(t, client, web)
	recv(t, stream)
	for i := range 3 * queueLength {
		set(t, c, bulky(i+1))
	}
	pumped := make(chan struct{})
	go func() { c.senders.Wait(); close(pumped) }()
	select {
	case <-pumped:
	case <-time.After(patience):
		t.Fatal("the stream did not end")
	}
	require.Contains(t, log.take(), "the client is too slow")
	st, n := ends(t, stream)
	require.Equal(t, codes.ResourceExhausted, st.Code(), st.Message())
	require.Less(t, n, queueLength, "what was queued is not sent any more")
}

// A client that does not read at all blocks Send. Serve must get rid of it too;
// its cleanup in served is the test.
func TestServeUnreadStreams(t *testing.T) {
	c := New(nil)
	c.stopTimeout = 100 * time.Millisecond
	set(t, c, bulky(0))
	client := served(t, c, grpc.WithStaticStreamWindowSize(1<<16))
	// Not get: its stream would be closed before the controller is.
	stream, err := client.Get(context.Background(), &pb.GetDestination{Path: web})
	require.NoError(t, err)
	recv(t, stream)
	for i := range 10 {
		set(t, c, bulky(i+1))
	}
}

func TestStopStreams(t *testing.T) {
	c := New(nil)
	client := served(t, c)
	unanswered := get(t, client, web) // nothing is set yet
	set(t, c, one(web, Destination{Endpoints: endpointsAt("10.0.0.1:80")}))
	recv(t, unanswered)
	profile := getProfile(t, client, web)
	recv(t, profile)

	c.Stop()
	c.Stop()
	st, _ := ends(t, unanswered)
	require.Equal(t, codes.Unavailable, st.Code())
	st, _ = ends(t, profile)
	require.Equal(t, codes.Unavailable, st.Code())
	st, n := ends(t, get(t, client, web))
	require.Equal(t, codes.Unavailable, st.Code())
	require.Zero(t, n, "a stopped controller answers nothing")
	set(t, c, Config{}) // harmless
}

func TestStreamClientCancels(t *testing.T) {
	c := New(nil)
	set(t, c, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	stream := &fakeStream{ctx: ctx, sent: make(chan *pb.Update)}
	ended := make(chan error, 1)
	go func() { ended <- c.Get(&pb.GetDestination{Path: web}, stream) }()
	same(t, none(false), <-stream.sent)
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-ended))
	require.Empty(t, c.updates)
}

func TestStreamSendError(t *testing.T) {
	c := New(nil)
	set(t, c, Config{})
	stream := &fakeStream{ctx: t.Context(), err: io.ErrClosedPipe}
	require.ErrorIs(t, c.Get(&pb.GetDestination{Path: web}, stream), io.ErrClosedPipe)
	require.Empty(t, c.updates)
}

func TestServeListenerError(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, lis.Close())
	err = New(nil).Serve(t.Context(), lis)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, err, lis.Addr().String())
}

// fakeStream is a client's stream without a network.
type fakeStream struct {
	grpc.ServerStreamingServer[pb.Update]
	ctx     context.Context
	sending chan struct{} // receives a value when a message is sent, if there is room
	sent    chan *pb.Update
	err     error
}

func (f *fakeStream) Context() context.Context { return f.ctx }

func (f *fakeStream) Send(u *pb.Update) error {
	if f.err != nil {
		return f.err
	}
	select {
	case f.sending <- struct{}{}:
	default:
	}
	select {
	case f.sent <- u:
		return nil
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}
