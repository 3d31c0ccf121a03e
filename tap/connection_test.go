package tap

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// tcpServer serves each connection with serve.
func tcpServer(t testing.TB, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			serve(conn.(*net.TCPConn))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// answer reads a question to its end, and responds.
func answer(conn *net.TCPConn) {
	_, _ = io.ReadAll(conn)
	_, _ = io.WriteString(conn, "four")
}

func ask(t testing.TB, conn net.Conn, question string) string {
	t.Helper()
	_, err := io.WriteString(conn, question)
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(b)
}

func connect(t testing.TB, svc tcplayer.Service) net.Conn {
	t.Helper()
	conn, err := svc.Call(t.Context(), tcplayer.Request{Client: clientAddr})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestConnectionEvents(t *testing.T) {
	addr := tcpServer(t, answer)
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	svc := Connections(reg, WithDestination(mustAddr(addr), podLabels), WithSourceLabels(hostLabels))(tcplayer.NewEndpoint(t.Context(), addr))
	ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "db"}})
	conn, err := svc.Call(ctx, tcplayer.Request{Client: clientAddr})
	require.NoError(t, err)
	opened := readAll(w)
	require.Len(t, opened, 1)
	require.NotNil(t, opened[0].Open)
	require.Equal(t, "four", ask(t, conn, "two and two"))
	require.Empty(t, readAll(w), "it is over when its holder says so")
	require.NoError(t, conn.Close())
	_ = conn.Close()
	closed := readAll(w)
	require.Len(t, closed, 1)
	for _, e := range []Event{opened[0], closed[0]} {
		require.Equal(t, Outbound, e.Direction)
		require.Equal(t, clientAddr, e.Source)
		require.Equal(t, mustAddr(addr), e.Destination)
		require.Equal(t, podLabels, e.DestinationLabels)
		require.Equal(t, hostLabels, e.SourceLabels)
		require.Equal(t, map[string]string{"route": "db"}, e.RouteLabels)
		require.Equal(t, opened[0].ID, e.ID)
	}
	end := *closed[0].Close
	require.Positive(t, end.SinceOpen)
	end.SinceOpen = 0
	require.Equal(t, ConnectionClose{Sent: 11, Received: 4}, end)
}

// An unwatched TCP connection is not wrapped, and a watched one keeps the fast
// copy of the kernel.
func TestConnectionType(t *testing.T) {
	addr := tcpServer(t, answer)
	reg := new(Registry)
	svc := Connections(reg)(tcplayer.NewEndpoint(t.Context(), addr))
	require.IsType(t, new(net.TCPConn), connect(t, svc))

	w := watch(t, reg, match.All(), 9, false)
	countAll(t, reg, nil)
	require.IsType(t, new(net.TCPConn), connect(t, svc), "linkerd's Observe and Top do not know of connections")
	require.Empty(t, events(w))

	none := watchOn(t, reg, &tappb.WatchRequest{Match: match.Path("/")})
	require.IsType(t, new(net.TCPConn), connect(t, svc), "a watcher with a condition on requests ignores connections")
	require.Empty(t, readAll(none))

	watchOn(t, reg, &tappb.WatchRequest{})
	conn := connect(t, svc)
	require.IsType(t, new(net.TCPConn), conn.(interface{ NetConn() net.Conn }).NetConn())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestConnectionFailedDial(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Limit: 2})
	down := func(context.Context, tcplayer.Request) (net.Conn, error) { return nil, errors.New("no route to host") }
	svc := Connections(reg, WithDestination(serverAddr, nil))(layer.Func[tcplayer.Request, net.Conn](down))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := svc.Call(gone, tcplayer.Request{})
	require.Error(t, err)
	for range 2 {
		_, err = svc.Call(t.Context(), tcplayer.Request{Client: clientAddr})
		require.EqualError(t, err, "no route to host")
	}
	all := readAll(w)
	require.Len(t, all, 2, "a canceled call has no event")
	for i, e := range all {
		require.Nil(t, e.Open)
		require.Equal(t, "no route to host", e.Close.Err)
		require.Equal(t, serverAddr, e.Destination)
		require.EqualValues(t, i, e.ID.Stream)
	}
	require.True(t, isDone(w))
}

// The Close event has the error, for an error of either side.
func TestConnectionBroken(t *testing.T) {
	reg := new(Registry)
	closing := func(t *testing.T, serve func(*net.TCPConn), breaks func(net.Conn)) *ConnectionClose {
		t.Helper()
		w := watchOn(t, reg, &tappb.WatchRequest{})
		conn := connect(t, Connections(reg)(tcplayer.NewEndpoint(t.Context(), tcpServer(t, serve))))
		breaks(conn)
		_ = conn.Close()
		all := readAll(w)
		require.Len(t, all, 2)
		return all[1].Close
	}
	hold := func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }
	t.Run("the peer", func(t *testing.T) {
		end := closing(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); _ = c.SetLinger(0) }, func(c net.Conn) {
			_, _ = io.WriteString(c, "hello")
			_, err := c.Read(make([]byte, 1))
			require.Error(t, err)
		})
		require.Contains(t, end.Err, "connection reset by peer")
		require.EqualValues(t, 5, end.Sent)
	})
	t.Run("read deadline", func(t *testing.T) {
		end := closing(t, hold, func(c net.Conn) {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
			_, err := c.Read(make([]byte, 1))
			require.Error(t, err)
		})
		require.Empty(t, end.Err, "a deadline breaks nothing")
	})
}

// The Close event has the explanation for watchers that request it, also of a failed dial.
func TestConnectionExplanation(t *testing.T) {
	reg := new(Registry)
	choice := layer.Node{Name: "chosen", State: layer.State{{Key: "endpoint", Value: 1}}}
	fails := false
	svc := Explain(reg, tcplayer.Bytes{})(layer.Func[tcplayer.Request, net.Conn](
		func(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
			if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
				why.Add(choice)
			}
			return Connections(reg)(layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) {
				if fails {
					return nil, errors.New("no route to host")
				}
				ours, theirs := net.Pipe()
				return ours, theirs.Close()
			})).Call(ctx, req)
		}))
	plain, explained := watchOn(t, reg, &tappb.WatchRequest{}), watchOn(t, reg, &tappb.WatchRequest{Explain: true})
	require.NoError(t, connect(t, svc).Close())
	fails = true
	_, err := svc.Call(t.Context(), tcplayer.Request{Client: clientAddr})
	require.Error(t, err)
	for w, want := range map[*watcher][]layer.Node{plain: nil, explained: {choice}} {
		all := readAll(w)
		require.Len(t, all, 3)
		for _, e := range []Event{all[1], all[2]} {
			require.Equal(t, want, e.Close.Explanation)
			require.Len(t, watchEventOf(e.watchProto()).Close.Explanation, len(want))
		}
	}
}

func TestConnectionConditions(t *testing.T) {
	reg := new(Registry)
	made := func(context.Context, tcplayer.Request) (net.Conn, error) {
		here, there := net.Pipe()
		return here, there.Close()
	}
	svc := Connections(reg, WithDestination(serverAddr, podLabels))(layer.Func[tcplayer.Request, net.Conn](made))
	for name, tt := range map[string]struct {
		match *pb.ObserveRequest_Match
		holds bool
	}{
		"nothing asked": {nil, true},
		"source":        {match.Source(netip.MustParsePrefix("10.0.0.0/8")), true},
		"other source":  {match.Source(netip.MustParsePrefix("11.0.0.0/8")), false},
		"destination":   {match.Destination(netip.MustParsePrefix("10.1.2.3/32")), true},
		"label":         {match.DestinationLabel("pod", "web-1"), true},
		"other label":   {match.DestinationLabel("pod", "web-2"), false},
		"route":         {match.RouteLabel("route", "db"), true},
		"other route":   {match.RouteLabel("route", "web"), false},
		"scheme":        {match.Scheme("http"), false},
		"method":        {match.Method("GET"), false},
		"path":          {match.PathPrefix(""), false},
		"authority":     {match.Authority(""), false},
		"not a path":    {match.Not(match.Path("/")), true},
		"any":           {match.Any(match.Path("/"), match.DestinationLabel("pod", "web-1")), true},
		"any of none":   {match.Any(), false},
		"all":           {match.All(match.DestinationLabel("pod", "web-1"), match.Path("/")), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := watchOn(t, reg, &tappb.WatchRequest{Match: tt.match})
			ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "db"}})
			conn, err := svc.Call(ctx, tcplayer.Request{Client: clientAddr})
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			assert.Len(t, readAll(w), map[bool]int{true: 2}[tt.holds])
		})
	}
	t.Run("a header field", func(t *testing.T) {
		w := watchOn(t, reg, &tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having("X", true)}})
		require.IsNotType(t, new(watchedConn), connect(t, svc))
		require.Empty(t, readAll(w))
	})
}

// A condition on the outcome is evaluated at the end, and delays nothing before.
func TestConnectionOutcomes(t *testing.T) {
	reg := new(Registry)
	broken := errors.New("broken")
	made := func(context.Context, tcplayer.Request) (net.Conn, error) {
		here, there := net.Pipe()
		return here, there.Close()
	}
	svc := Connections(reg)(layer.Func[tcplayer.Request, net.Conn](made))
	fails := Connections(reg)(layer.Func[tcplayer.Request, net.Conn](
		func(context.Context, tcplayer.Request) (net.Conn, error) { return nil, broken }))
	for name, tt := range map[string]struct {
		response     *tappb.ResponseMatch
		good, failed int
	}{
		"nothing":   {&tappb.ResponseMatch{}, 2, 1},
		"failures":  {&tappb.ResponseMatch{Failures: true}, 0, 1},
		"slow":      {&tappb.ResponseMatch{SlowerThan: durationpb.New(time.Hour)}, 0, 0},
		"a status":  {&tappb.ResponseMatch{MinStatus: 1, MaxStatus: 599}, 0, 0},
		"of gRPC's": {&tappb.ResponseMatch{GrpcStatus: []uint32{0}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := watchOn(t, reg, &tappb.WatchRequest{Response: tt.response})
			conn := connect(t, svc)
			require.Empty(t, readAll(w))
			require.Zero(t, w.buf.Load().held.Load())
			require.NoError(t, conn.Close())
			require.Len(t, readAll(w), tt.good)
			_, err := fails.Call(t.Context(), tcplayer.Request{})
			require.ErrorIs(t, err, broken)
			require.Len(t, readAll(w), tt.failed)
			require.Zero(t, w.inFlight.Load())
		})
	}
}

func TestConnectionLimit(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{Limit: 1})
	svc := Connections(reg)(tcplayer.NewEndpoint(t.Context(), tcpServer(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })))
	conn := connect(t, svc)
	require.IsType(t, new(net.TCPConn), connect(t, svc), "there is no more room")
	require.False(t, isDone(w))
	require.NoError(t, conn.Close())
	require.True(t, isDone(w))
	require.Len(t, readAll(w), 2)
}

func TestConnectionDropped(t *testing.T) {
	reg := NewRegistry(WithCapacity(1, 1))
	w := watchOn(t, reg, &tappb.WatchRequest{})
	svc := Connections(reg)(layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) {
		here, there := net.Pipe()
		return here, there.Close()
	}))
	conn := connect(t, svc)
	require.IsNotType(t, new(watchedConn), connect(t, svc), "its Open did not fit")
	require.NoError(t, conn.Close())
	require.EqualValues(t, 2, w.dropped.Load(), "nor did the Close of the first")
	require.Zero(t, w.inFlight.Load())
	reg.close(w)
	require.IsNotType(t, new(watchedConn), connect(t, svc))
}

func TestConnectionSample(t *testing.T) {
	draws := []float64{.4, .6}
	reg := new(Registry)
	reg.random = func() float64 { d := draws[0]; draws = draws[1:]; return d }
	first, second := watchOn(t, reg, &tappb.WatchRequest{Sample: .5}), watchOn(t, reg, &tappb.WatchRequest{Sample: .5})
	svc := Connections(reg)(layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) {
		here, there := net.Pipe()
		return here, there.Close()
	}))
	connect(t, svc)
	connect(t, svc)
	require.Len(t, readAll(first), 1)
	require.Len(t, readAll(second), 1, "both watchers sample the same half")
}

// gotower's own service sends connections completely. linkerd's service sends none.
func TestConnectionOverGRPC(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	own := p.watch(t.Context(), t, &tappb.WatchRequest{Limit: 1})
	theirs := p.observe(t.Context(), t, all(1))
	svc := Connections(p.reg)(tcplayer.NewEndpoint(t.Context(), tcpServer(t, answer)))
	conn := connect(t, svc)
	require.Equal(t, "four", ask(t, conn, "?"))
	require.NoError(t, conn.Close())
	require.NotNil(t, recvWatch(t, own).Open)
	end := recvWatch(t, own)
	require.EqualValues(t, 1, end.Close.Sent)
	require.EqualValues(t, 4, end.Close.Received)
	require.Positive(t, end.Close.SinceOpen)
	_, err := own.Recv()
	require.ErrorIs(t, err, io.EOF)
	send(t, stand(p.reg, respond("x")), get("/"))
	require.NotNil(t, recv(t, theirs).RequestInit, "the first that it hears of")
}

func BenchmarkConnection(b *testing.B) {
	conn, _ := net.Pipe()
	inner := layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) { return conn, nil })
	for name, svc := range map[string]func() tcplayer.Service{
		"bare": func() tcplayer.Service { return inner },
		"idle": func() tcplayer.Service { return Connections(new(Registry))(inner) },
		"watched without match": func() tcplayer.Service {
			reg := new(Registry)
			watchOn(b, reg, &tappb.WatchRequest{Match: match.Destination(netip.MustParsePrefix("10.0.0.0/8"))})
			return Connections(reg, WithDestination(mustAddr("192.0.2.1:80"), nil))(inner)
		},
	} {
		b.Run(name, func(b *testing.B) {
			svc := svc()
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := svc.Call(ctx, tcplayer.Request{Client: clientAddr}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A client that resets its connection makes Forward reset the one to the server, which is not closed as usual.
func TestConnectionOfResetClient(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	addr := tcpServer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	serve := tcplayer.Forward(Connections(reg)(tcplayer.NewEndpoint(t.Context(), addr)))
	client, accepted := conntest.Pair(t)
	served := make(chan error)
	go func() {
		_, err := serve.Call(t.Context(), accepted)
		served <- err
	}()
	_, err := io.WriteString(client, "hello")
	require.NoError(t, err)
	_, err = io.ReadFull(client, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, client.SetLinger(0))
	require.NoError(t, client.Close())
	require.Error(t, <-served)
	all := readAll(w)
	require.Len(t, all, 2)
	require.Contains(t, all[1].Close.Err, "reset")
}

// A tap in the stack of an endpoint, below a limit that holds connections until
// they are closed, in front of a server that resets them.
func TestConnectionInStack(t *testing.T) {
	addr := tcpServer(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); _ = c.SetLinger(0) })
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	connect := tcplayer.NewStack().Limit(1).With("tap", Connections(reg)).Service(tcplayer.NewEndpoint(t.Context(), addr))
	require.Contains(t, layer.Describe(connect).String(), "tap        watching=1 dropped=0\n")
	serve := tcplayer.Forward(connect)
	far, near := net.Pipe()
	served := make(chan error)
	go func() {
		_, err := serve.Call(t.Context(), far)
		served <- err
	}()
	_, err := io.WriteString(near, "hello")
	require.NoError(t, err)
	require.Error(t, <-served)
	_ = near.Close()
	closes := map[Direction]*ConnectionClose{}
	for _, e := range readAll(w) {
		if e.Close != nil {
			closes[e.Direction] = e.Close
		}
	}
	require.Contains(t, closes[Outbound].Err, "connection reset by peer")
	require.EqualValues(t, 5, closes[Outbound].Sent)
	require.Zero(t, w.inFlight.Load())
	require.NoError(t, layer.Poll(connect), "and the limit has its place back")
}

// The invariants of layers hold for connections, too.
func TestConnectionConform(t *testing.T) {
	spec := layertest.LayerOf[tcplayer.Request, net.Conn]{
		Request: func(i int) tcplayer.Request {
			return tcplayer.Request{Client: netip.AddrPortFrom(clientAddr.Addr(), uint16(i))}
		},
		Response: func(i int) net.Conn { return numbered{number: i} },
	}
	spec.Layer, spec.Transparent = Connections(new(Registry)), true
	t.Run("idle", func(t *testing.T) { layertest.Run(t, spec) })
	reg := new(Registry)
	watchOn(t, reg, &tappb.WatchRequest{})
	spec.Layer, spec.Transparent = Connections(reg), false
	t.Run("watched", func(t *testing.T) { layertest.Run(t, spec) })
}

// numbered is a connection that is nothing but one of several.
type numbered struct {
	net.Conn
	number int
}

func (numbered) RemoteAddr() net.Addr { return nil }
func (numbered) Close() error         { return nil }
