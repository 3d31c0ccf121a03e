package tcplayer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// serverFunc is a function as a Server.
type serverFunc = layer.Func[net.Conn, ByteCount]

// holding is a Server that holds each connection until its client closes it.
func holding() Server {
	return serverFunc(func(ctx context.Context, conn net.Conn) (ByteCount, error) {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		n, err := io.Copy(conn, conn)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		conn.Close()
		return ByteCount{Sent: n}, err
	})
}

// serving runs Serve on an address in memory.
func serving(t *testing.T, p *place, svc Server, opts ...ServeOption) (end context.CancelFunc, done <-chan error) {
	t.Helper()
	p.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- Serve(ctx, p.l, svc, opts...) }()
	return cancel, over
}

func (p *place) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := p.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	return conn
}

// say sends a message and expects it back.
func say(conn net.Conn) error {
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 5))
	return err
}

func TestServeDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		end, done := serving(t, &p, holding())
		conns := []net.Conn{p.dial(t), p.dial(t)}
		synctest.Wait()
		end()
		synctest.Wait()
		_, err := p.DialContext(t.Context(), "tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "it still listens")
		time.Sleep(time.Minute)
		for _, conn := range conns {
			require.NoError(t, say(conn), "it was broken off")
			conn.Close()
		}
		require.NoError(t, <-done)
	})
}

func TestServeShutdownTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []ServeOption
		want time.Duration
	}{
		"default": {nil, 2 * time.Minute},
		"set":     {[]ServeOption{WithShutdownTimeout(3 * time.Second)}, 3 * time.Second},
		"none":    {[]ServeOption{WithShutdownTimeout(-1)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p place
				end, done := serving(t, &p, holding(), tt.opts...)
				conns := []net.Conn{p.dial(t), p.dial(t)}
				synctest.Wait()
				end()
				start := time.Now()
				err := <-done
				assert.Equal(t, tt.want, time.Since(start))
				require.ErrorIs(t, err, layer.ErrTimeout)
				require.ErrorContains(t, err, "2 open connections were canceled")
				for _, conn := range conns {
					require.Error(t, say(conn))
				}
			})
		})
	}
}

func TestServeContextValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var p place
		p.open(t)
		ctx, end := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		values := make(chan any, 1)
		svc := serverFunc(func(ctx context.Context, _ net.Conn) (ByteCount, error) {
			values <- ctx.Value(key{})
			return ByteCount{}, nil
		})
		done := make(chan error)
		go func() { done <- Serve(ctx, p.l, svc) }()
		conn := p.dial(t)
		assert.Equal(t, "value", <-values)
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "what the service left open")
		end()
		require.NoError(t, <-done)
		require.NoError(t, Serve(ctx, p.l, svc), "of a context that is done")
	})
}

func TestServeResetsRejected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	svc := layer.NewStack[net.Conn, ByteCount]().Limit(1).Service(holding())
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Serve(ctx, l, svc, WithLogger(logger)) }()

	first, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, say(first))
	second, err := net.Dial("tcp", l.Addr().String())
	if err == nil { // the reset may arrive before the dial returns
		_, err = second.Read(make([]byte, 1))
		second.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NoError(t, say(first))
	first.Close()
	end()
	require.NoError(t, <-done)
	assert.Contains(t, log.String(), `msg="connection rejected" client=127.0.0.1:`)
	assert.Contains(t, log.String(), "1 of 1 in flight")
}

// failing is a listener with an Accept that returns the given errors.
type failing struct {
	net.Listener
	errs []error
	at   []time.Duration
	born time.Time
}

func (f *failing) Accept() (net.Conn, error) {
	f.at = append(f.at, time.Since(f.born))
	if len(f.errs) == 0 {
		return f.Listener.Accept()
	}
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

func accept(err syscall.Errno) error {
	return &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func TestServeTemporaryErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		f := &failing{Listener: p.l, born: time.Now(), errs: []error{
			accept(syscall.EMFILE), accept(syscall.ENFILE), accept(syscall.ECONNABORTED), accept(syscall.ENOBUFS), accept(syscall.ENOMEM),
			accept(syscall.EMFILE), accept(syscall.EMFILE), accept(syscall.EMFILE), accept(syscall.EMFILE), accept(syscall.EMFILE),
		}}
		var log bytes.Buffer
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- Serve(ctx, f, holding(), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))) }()
		conn := p.dial(t)
		require.NoError(t, say(conn))
		synctest.Wait()
		ms := time.Millisecond
		assert.Equal(t, []time.Duration{
			0, 5 * ms, 15 * ms, 35 * ms, 75 * ms, 155 * ms, 315 * ms, 635 * ms, 1275 * ms, 2275 * ms, 3275 * ms,
		}, f.at[:11])
		conn.Close()
		end()
		require.NoError(t, <-done)
		assert.Equal(t, 10, bytes.Count(log.Bytes(), []byte(`level=WARN msg="accept failed, retrying"`)))
	})
}

func TestServeListenerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		why := errors.New("no more")
		done := make(chan error)
		go func() {
			done <- Serve(t.Context(), &failing{Listener: p.l, errs: []error{why}}, holding())
		}()
		err := <-done
		require.ErrorIs(t, err, why)
		require.ErrorContains(t, err, "serve "+addr+": accept: ")
		_, err = p.DialContext(t.Context(), "tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestServeLogsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		var log bytes.Buffer
		svc := serverFunc(func(context.Context, net.Conn) (ByteCount, error) { return ByteCount{Sent: 3}, errors.New("broke") })
		end, done := serving(t, &p, svc, WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		conn := p.dial(t)
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		end()
		require.NoError(t, <-done)
		assert.Contains(t, log.String(), `msg="connection failed"`)
		assert.Contains(t, log.String(), "sent=3 received=0 error=broke")
	})
}
