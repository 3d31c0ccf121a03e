package tcplayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

var errBoom = errors.New("boom")

// A panic of the Server closes only its connection, and frees its slot.
func TestServePanic(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var calls atomic.Int64
	svc := layer.NewStack[net.Conn, ByteCount]().Limit(1).Service(serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
		_, err := conn.Read(make([]byte, 1)) // the client has connected
		if calls.Add(1) == 1 {
			panic(errBoom)
		}
		if err != nil {
			return ByteCount{}, err
		}
		_, err = io.WriteString(conn, "served")
		return ByteCount{}, errors.Join(err, conn.Close())
	}))
	ctx, end := context.WithCancel(t.Context())
	var log bytes.Buffer
	done := make(chan error)
	go func() { done <- Serve(ctx, l, svc, WithLogger(slog.New(slog.NewTextHandler(&log, nil)))) }()

	for _, want := range []string{"", "served"} {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(conn, "x")
		require.NoError(t, err)
		got, _ := io.ReadAll(conn) // the first one is reset
		require.Equal(t, want, string(got))
		require.NoError(t, conn.Close())
	}
	end()
	require.NoError(t, <-done)
	require.Contains(t, log.String(), `level=ERROR msg="panic while serving a connection"`)
	require.Contains(t, log.String(), ": boom")
	require.Contains(t, log.String(), "panic_test.go")
}

// badCloser is a connection that panics in Close.
type badCloser struct{ net.Conn }

func (c badCloser) Close() error {
	_ = c.Conn.Close()
	panic(errBoom)
}

type badListener struct{ net.Listener }

func (l badListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return badCloser{conn}, err
}

// A panic in Close of a connection affects only that connection.
func TestServePanicOfClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, badListener{l}, serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
			_, err := io.WriteString(conn, "served")
			return ByteCount{}, err
		}))
	}()
	for range 2 {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "served", string(got))
		require.NoError(t, conn.Close())
	}
	end()
	require.NoError(t, <-done)
}

// A panic in Close of a connection that arrives after its call was canceled is
// dropped.
func TestEndpointPanicOfClose(t *testing.T) {
	dialled, left := make(chan struct{}), make(chan struct{})
	peer := make(chan net.Conn, 1)
	ctx, leave := context.WithCancel(t.Context())
	e := NewEndpoint(t.Context(), "web.example:80", WithDialContext(func(context.Context, string, string) (net.Conn, error) {
		close(dialled)
		<-left
		near, far := net.Pipe()
		peer <- far
		return badCloser{near}, nil
	}))
	go func() {
		<-dialled
		leave()
	}()
	_, err := e.Call(ctx, Request{})
	require.ErrorIs(t, err, layer.ErrNotReady)
	close(left)
	_, err = (<-peer).Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, e.Ready(t.Context()))
}

// A Server that panics in Ready ends Serve and closes the listener. As one of
// several servers it is not ready.
func TestReadyPanic(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.PanicsWithValue(t, errBoom, func() { _ = Serve(t.Context(), l, unready{}) })
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

type unready struct{ Server }

func (unready) Ready(context.Context) error { panic(errBoom) }

// A panic of a dial function or of a TLS callback fails the connect attempt,
// and leaves no connection open.
func TestEndpointPanic(t *testing.T) {
	var conn net.Conn
	peer := make(chan net.Conn, 1)
	pipe := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		conn = near
		peer <- far
		return near, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: brittleCache{}}
	for name, opts := range map[string][]EndpointOption{
		"dial": {WithDialContext(func(context.Context, string, string) (net.Conn, error) { panic(errBoom) })},
		"TLS":  {WithDialContext(pipe), WithTLS(cfg)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewEndpoint(t.Context(), "web.example:80", opts...).Call(t.Context(), Request{})
			require.ErrorIs(t, err, layer.ErrNotReady)
			var panicked *panics.Error
			require.ErrorAs(t, err, &panicked)
			require.Equal(t, errBoom, panicked.Value)
		})
	}
	_, err := (<-peer).Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the connection was closed")

	d := &Dialer{Dial: pipe, TLS: cfg}
	require.PanicsWithValue(t, errBoom, func() { _, _ = d.DialContext(t.Context(), "tcp", "web.example:80") })
	_, err = (<-peer).Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the connection was closed")
	require.NotNil(t, conn)
}

// brittleCache is called by crypto/tls in the handshake.
type brittleCache struct{}

func (brittleCache) Get(string) (*tls.ClientSessionState, bool) { panic(errBoom) }
func (brittleCache) Put(string, *tls.ClientSessionState)        {}

// A panic in a copy, in either direction, is the error of Call.
func TestForwardPanic(t *testing.T) {
	for name, wrap := range map[string]func(client, server net.Conn) (net.Conn, net.Conn){
		"client to server": func(client, server net.Conn) (net.Conn, net.Conn) { return brittleConn{client}, server },
		"server to client": func(client, server net.Conn) (net.Conn, net.Conn) { return client, brittleConn{server} },
	} {
		t.Run(name, func(t *testing.T) {
			client, peer := net.Pipe()
			server, upstream := net.Pipe()
			client, server = wrap(client, server)
			to := layer.Func[Request, net.Conn](func(context.Context, Request) (net.Conn, error) { return server, nil })
			_, err := Forward(to).Call(t.Context(), client)
			var panicked *panics.Error
			require.ErrorAs(t, err, &panicked)
			require.ErrorContains(t, err, name)
			for _, end := range []net.Conn{peer, upstream} {
				_, err = end.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
			}
		})
	}
}

type brittleConn struct{ net.Conn }

func (brittleConn) Read([]byte) (int, error) { panic(errBoom) }

// A panic of an instrument is dropped, because any goroutine may read.
func TestMeterPanic(t *testing.T) {
	i := brittleInstrument{}
	m := NewMeter(Instruments{Opened: i, Open: brittleGauge{}, Closed: i, Read: i, Written: i})
	near, far := net.Pipe()
	conn := m.Conn(near)
	go func() { _, _ = io.WriteString(far, "x") }()
	_, err := conn.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = far.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

type brittleInstrument struct{}

func (i brittleInstrument) With(...string) metrics.Counter { return i }
func (brittleInstrument) Add(float64)                      { panic(errBoom) }

type brittleGauge struct{}

func (g brittleGauge) With(...string) metrics.Gauge { return g }
func (brittleGauge) Set(float64)                    { panic(errBoom) }
func (brittleGauge) Add(float64)                    { panic(errBoom) }
