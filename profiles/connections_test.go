package profiles_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
)

// switchboard is a proxy for connections to "db:5432" with a profile. Each connection
// gets the greeting of its server, and then an echo.
type switchboard struct {
	t       *testing.T
	network layertest.Network
	source  profiles.Static
	router  *profiles.Router[tcplayer.Request, net.Conn]
	looked  int // connections that were looked into
}

const db = "db:5432"

func newSwitchboard(t *testing.T, first *profiles.Profile) *switchboard {
	t.Helper()
	s := &switchboard{t: t}
	where := map[string]string{"db:5432": "10.0.0.1:5432", "v1:5432": "10.0.0.2:5432", "v2:5432": "10.0.0.3:5432"}
	for _, addr := range []string{"10.0.0.1:5432", "10.0.0.2:5432", "10.0.0.3:5432", "10.0.0.4:5432"} {
		s.greet(addr)
	}
	connect := func(addr string) tcplayer.Service {
		return tcplayer.NewEndpoint(t.Context(), addr, tcplayer.WithDialContext(s.network.DialContext))
	}
	s.source.Set(db, first)
	s.router = profiles.New(t.Context(), profiles.Config{Target: db, Source: &s.source, InitialWait: time.Second}, tcplayer.Bytes{},
		func(string) tcplayer.Service { return nil },
		profiles.WithBackends(func(_ context.Context, b *profiles.Backend) tcplayer.Service {
			if b.Endpoint != nil {
				return connect(b.Endpoint.Addr.String())
			}
			return connect(where[b.Authority])
		}))
	l, err := s.network.Listen("tcp", "10.0.0.9:5432")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- tcplayer.Serve(ctx, l, s.detect(), tcplayer.WithShutdownTimeout(0)) }()
	t.Cleanup(func() {
		stop()
		<-served
	})
	return s
}

// greet serves an address: it speaks first, as databases do.
func (s *switchboard) greet(addr string) {
	l, err := s.network.Listen("tcp", addr)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, addr)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

// detect looks for a protocol in connections, which means to wait for the
// client's first byte, unless the profile forbids it.
func (s *switchboard) detect() tcplayer.Server {
	forward := tcplayer.Forward(s.router)
	return layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		d, err := s.router.Dispatch(ctx)
		if err != nil {
			return tcplayer.ByteCount{}, err
		}
		if !d.Opaque {
			s.looked++
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				return tcplayer.ByteCount{}, err
			}
		}
		return forward.Call(ctx, conn)
	})
}

func (s *switchboard) dial() (conn net.Conn, greeting string) {
	s.t.Helper()
	conn, err := s.network.DialContext(s.t.Context(), "tcp", "10.0.0.9:5432")
	require.NoError(s.t, err)
	return conn, s.read(conn, len("10.0.0.9:5432"))
}

func (s *switchboard) read(conn net.Conn, n int) string {
	s.t.Helper()
	buf := make([]byte, n)
	_, err := io.ReadFull(conn, buf)
	require.NoError(s.t, err)
	return string(buf)
}

// A split is drawn for each connection, which stays where it is when the
// profile changes.
func TestSplitOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchboard(t, &profiles.Profile{OpaqueProtocol: true, Name: "db", Targets: []profiles.Target{
			{Authority: "v1:5432", Weight: 3}, {Authority: "v2:5432", Weight: 1},
		}})
		ended := make(map[string]int)
		for range 400 {
			conn, at := s.dial()
			ended[at]++
			conn.Close()
		}
		require.Len(t, ended, 2)
		assert.InDelta(t, 300, ended["10.0.0.2:5432"], 50, "%v", ended) // more than five standard deviations

		old, first := s.dial()
		other := map[string]string{"10.0.0.2:5432": "v2:5432", "10.0.0.3:5432": "v1:5432"}[first]
		s.source.Set(db, &profiles.Profile{OpaqueProtocol: true, Name: "db", Targets: []profiles.Target{{Authority: other, Weight: 1}}})
		synctest.Wait()
		for range 20 {
			conn, at := s.dial()
			assert.NotEqual(t, first, at)
			conn.Close()
		}
		_, err := io.WriteString(old, "still here")
		require.NoError(t, err)
		assert.Equal(t, "still here", s.read(old, len("still here")))
		old.Close()
		assert.Zero(t, s.looked, "no detection of an opaque connection")
		synctest.Wait()
	})
}

// Each new connection follows the Dispatch of the profile: with or without protocol
// detection, to one endpoint or to the apex.
func TestDispatchOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchboard(t, &profiles.Profile{OpaqueProtocol: true, Endpoint: pod("10.0.0.4:5432")})
		conn, at := s.dial()
		assert.Equal(t, "10.0.0.4:5432", at, "the endpoint, and the server speaks first")
		conn.Close()
		assert.Zero(t, s.looked)

		s.source.Set(db, &profiles.Profile{Endpoint: pod("10.0.0.4:5432")})
		synctest.Wait()
		conn, err := s.network.DialContext(t.Context(), "tcp", "10.0.0.9:5432")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err, "not opaque: the client has to begin")
		require.NoError(t, conn.SetReadDeadline(time.Time{}))
		_, err = conn.Write([]byte("?"))
		require.NoError(t, err)
		assert.Equal(t, "10.0.0.4:5432", s.read(conn, len("10.0.0.4:5432")))
		conn.Close()
		assert.Equal(t, 1, s.looked)

		s.source.Set(db, &profiles.Profile{OpaqueProtocol: true, Endpoint: pod("10.0.0.4:5432"), Name: "db"})
		synctest.Wait()
		conn, at = s.dial()
		assert.Equal(t, "10.0.0.1:5432", at, "a name comes before an endpoint")
		conn.Close()
		synctest.Wait()
	})
}
