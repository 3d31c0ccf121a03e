package tap

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
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
	svc := Explain[tcplayer.Request, net.Conn](reg)(layer.Func[tcplayer.Request, net.Conn](
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
