package tcplayer

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// secured is a client and a server with a Forward between them. One side uses
// TLS of this package. Bytes written to far are read from near.
type secured struct {
	near, raw net.Conn // raw is below far
	far       *tls.Conn
	held      bool // what near is forwarded to is observed
	done      chan error
}

// closes limits the time of a test, and closes its connections.
func (s *secured) closes(t *testing.T) *secured {
	t.Helper()
	for _, conn := range []net.Conn{s.near, s.raw} {
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		t.Cleanup(func() { conn.Close() })
	}
	return s
}

// half forwards a part of a response.
func half(t *testing.T, s *secured) {
	t.Helper()
	const said = "half of an answer\n"
	_, err := io.WriteString(s.far, said)
	require.NoError(t, err)
	got := make([]byte, len(said))
	_, err = io.ReadFull(s.near, got)
	require.NoError(t, err)
	require.Equal(t, said, string(got))
}

// making is a function as a Service.
type making = layer.Func[Request, net.Conn]

// securedServer is secured with a TLS server at which connect arrives.
func securedServer(t *testing.T, holds *seen, opts []ForwardOption,
	connect func(cfg *tls.Config, dial func(context.Context, string, string) (net.Conn, error)) Service,
) *secured {
	t.Helper()
	theirs, roots := identity(t, "web.default")
	client, accepted := conntest.Pair(t)
	made, raw := conntest.Pair(t)
	s := &secured{near: client, raw: raw, far: tls.Server(raw, theirs), held: true, done: make(chan error, 1)}
	to := connect(&tls.Config{RootCAs: roots, ServerName: "web.default"},
		func(context.Context, string, string) (net.Conn, error) { return made, nil })
	held := making(func(ctx context.Context, req Request) (net.Conn, error) {
		conn, err := to.Call(ctx, req)
		if err != nil {
			return nil, err
		}
		return UntilClosed(ctx, conn, holds), nil
	})
	go func() {
		_, err := Forward(held, opts...).Call(t.Context(), accepted)
		s.done <- err
	}()
	s.closes(t)
	require.NoError(t, s.far.Handshake())
	return s
}

// securedClient is secured with a TLS client, which DetectTLS terminates.
func securedClient(t *testing.T, opts []ForwardOption, between func(Server) Server) *secured {
	t.Helper()
	ours, roots := identity(t, "web.default")
	raw, accepted := conntest.Pair(t)
	made, server := conntest.Pair(t)
	far := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "web.default"})
	s := &secured{near: server, raw: raw, far: far, done: make(chan error, 1)}
	svc := DetectTLS(ours, MatchServerName("web.default"), TLSServers{Terminate: between(Forward(to(made), opts...))},
		WithDetectTimeout(time.Minute))
	go func() {
		_, err := svc.Call(t.Context(), accepted)
		s.done <- err
	}()
	return s.closes(t)
}

// A TLS connection without close_notify is reset on the other side, because its
// data may be incomplete. With close_notify it is closed.
func TestForwardTLSEnd(t *testing.T) {
	type dialer = func(context.Context, string, string) (net.Conn, error)
	endpoint := func(cfg *tls.Config, dial dialer) Service {
		return NewEndpoint(t.Context(), addr, WithTLS(cfg), WithDialContext(dial), WithConnectTimeout(time.Minute))
	}
	both(t, func(t *testing.T, opts ...ForwardOption) {
		for name, start := range map[string]func(t *testing.T, holds *seen) *secured{
			"endpoint": func(t *testing.T, holds *seen) *secured { return securedServer(t, holds, opts, endpoint) },
			"dialer": func(t *testing.T, holds *seen) *secured {
				return securedServer(t, holds, opts, func(cfg *tls.Config, dial dialer) Service {
					return making(func(ctx context.Context, _ Request) (net.Conn, error) {
						return (&Dialer{TLS: cfg, Dial: dial}).DialContext(ctx, "tcp", addr)
					})
				})
			},
			"client": func(t *testing.T, _ *seen) *secured {
				return securedClient(t, opts, func(s Server) Server { return s })
			},
			"client, looked at and counted": func(t *testing.T, _ *seen) *secured {
				return securedClient(t, opts, func(s Server) Server {
					return NewMeter(Instruments{}).WrapServer(Detect(Protocols{Opaque: s}, WithDetectTimeout(time.Minute)))
				})
			},
		} {
			t.Run(name+", cut short", func(t *testing.T) {
				var holds seen
				s := start(t, &holds)
				half(t, s)
				require.NoError(t, closeWrite(s.raw))
				_, err := s.near.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				_, err = s.raw.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				err = <-s.done
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.Equal(t, "i/o", ErrorKind(err))
				if s.held {
					assert.Equal(t, []error{io.ErrUnexpectedEOF}, holds.ended())
				}
			})
			t.Run(name+", in good order", func(t *testing.T) {
				var holds seen
				s := start(t, &holds)
				half(t, s)
				require.NoError(t, s.far.CloseWrite())
				require.NoError(t, closeWrite(s.raw))
				rest, err := io.ReadAll(s.near)
				require.NoError(t, err)
				assert.Empty(t, rest)
				io.WriteString(s.near, "go on")
				require.NoError(t, closeWrite(s.near))
				rest, err = io.ReadAll(s.far)
				require.NoError(t, err)
				assert.Equal(t, "go on", string(rest))
				require.NoError(t, <-s.done)
				if s.held {
					assert.Equal(t, []error{nil}, holds.ended())
				}
			})
		}
	})
}

// A Read may return the last bytes together with close_notify.
func TestForwardTLSEndInOneRead(t *testing.T) {
	for name, said := range map[string]bool{"close_notify": true, "EOF": false} {
		t.Run(name, func(t *testing.T) {
			theirs, roots := identity(t, "web.default")
			theirs.SessionTicketsDisabled = true // so that all fits into one Read
			near, far := conntest.Pair(t)
			defer near.Close()
			defer far.Close()
			server := tls.Server(far, theirs)
			whole := &inOne{Conn: near}
			client := tls.Client(newEOFConn(whole), &tls.Config{RootCAs: roots, ServerName: "web.default"})
			shaken := make(chan error, 1)
			go func() { shaken <- server.Handshake() }()
			require.NoError(t, client.Handshake())
			require.NoError(t, <-shaken)
			whole.on = true
			io.WriteString(server, "all of it")
			if said {
				require.NoError(t, server.CloseWrite())
			}
			require.NoError(t, far.CloseWrite())
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			assert.Equal(t, "all of it", string(got))
			if said {
				require.NoError(t, truncation(client))
			} else {
				require.ErrorIs(t, truncation(client), io.ErrUnexpectedEOF)
			}
		})
	}
}

// inOne returns all bytes after on together with the end.
type inOne struct {
	net.Conn
	on bool
}

func (c *inOne) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for c.on && err == nil {
		var more int
		more, err = c.Conn.Read(p[n:])
		n += more
	}
	return n, err
}
