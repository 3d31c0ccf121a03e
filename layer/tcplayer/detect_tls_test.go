package tcplayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// identity is a certificate for name, and its trust anchors.
func identity(t testing.TB, name string) (*tls.Config, *x509.CertPool) {
	t.Helper()
	cert, err := selfSigned(name)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	return &tls.Config{Certificates: []tls.Certificate{cert}}, roots
}

func TestDetectTLS(t *testing.T) {
	ours, roots := identity(t, "web.default")
	theirs, trust := identity(t, "other.default")
	ours.NextProtos = []string{"transport.l5d.io/v1"}
	behind := serverFunc(func(ctx context.Context, conn net.Conn) (ByteCount, error) { // TLS that passed through ends here
		return named("pass").Call(ctx, tls.Server(conn, theirs))
	})
	local := serverFunc(func(ctx context.Context, conn net.Conn) (ByteCount, error) {
		state, ok := TLSState(UntilClosed(ctx, conn, &seen{}))
		assert.True(t, ok)
		return named("local "+state.ServerName+" "+state.NegotiatedProtocol).Call(ctx, conn)
	})
	svc := DetectTLS(ours, MatchServerName("WEB.default"), TLSServers{Terminate: local, Passthrough: behind, Cleartext: named("clear")})
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		for want, wrap := range map[string]func(net.Conn) net.Conn{
			"clear: hello": func(c net.Conn) net.Conn { return c },
			"pass: hello": func(c net.Conn) net.Conn {
				return tls.Client(c, &tls.Config{ServerName: "other.default", RootCAs: trust})
			},
			"local Web.Default transport.l5d.io/v1: hello": func(c net.Conn) net.Conn {
				return tls.Client(c, &tls.Config{ServerName: "Web.Default", RootCAs: roots, NextProtos: ours.NextProtos})
			},
			"local web.default : hello": func(c net.Conn) net.Conn {
				cfg := &tls.Config{ServerName: "web.default", RootCAs: roots, NextProtos: nil}
				return tls.Client(&dribble{c, 100}, cfg)
			},
		} {
			t.Run(want, func(t *testing.T) {
				client, accepted := pair()
				done := make(chan error, 1)
				go func() {
					_, err := svc.Call(t.Context(), accepted)
					done <- err
				}()
				conn := wrap(client)
				io.WriteString(conn, "hello")
				require.NoError(t, closeWrite(conn))
				got, err := io.ReadAll(conn)
				require.NoError(t, err)
				assert.Equal(t, want, string(got))
				require.NoError(t, <-done)
			})
		}
	})
	_, ok := TLSState(nil)
	assert.False(t, ok)
}

// TLS without a server name does not match an empty name.
func TestNames(t *testing.T) {
	ours := MatchServerName("", "WEB.default")
	assert.True(t, ours("web.default"))
	assert.False(t, ours(""))
	assert.False(t, ours("other.default"))

	cfg, _ := identity(t, "web.default")
	client, accepted := conntest.Pair(t)
	client.Write(helloOf(t, &tls.Config{InsecureSkipVerify: true}))
	require.NoError(t, client.CloseWrite())
	took := ""
	says := func(name string) Server {
		return serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
			took = name
			return ByteCount{}, conn.Close()
		})
	}
	_, err := DetectTLS(cfg, MatchServerName(""), TLSServers{Terminate: says("local"), Passthrough: says("pass")}).Call(t.Context(), accepted)
	require.NoError(t, err)
	assert.Equal(t, "pass", took)
}

func TestDetectTLSEnds(t *testing.T) {
	ours, _ := identity(t, "web.default")
	hello := helloOf(t, &tls.Config{ServerName: "web.default"})
	why := errors.New("enough")
	every := TLSServers{Terminate: named("local"), Passthrough: named("pass"), Cleartext: named("clear")}
	only := TLSServers{Terminate: named("local"), Passthrough: named("pass")}
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		for name, tt := range map[string]struct {
			to   TLSServers
			said []byte
			do   func(client *net.TCPConn, cancel context.CancelCauseFunc)
			want error
			text string
			ends error
		}{
			"closed without a byte": {only, nil, func(c *net.TCPConn, _ context.CancelCauseFunc) { c.CloseWrite() },
				io.ErrUnexpectedEOF, "tls: no ClientHello: unexpected EOF", nil},
			"silence":      {only, nil, nil, layer.ErrTimeout, "tls: timeout: no ClientHello (waited 20ms)", syscall.ECONNRESET},
			"half a hello": {only, hello[:300], nil, layer.ErrTimeout, "tls: timeout: no ClientHello (waited 20ms)", syscall.ECONNRESET},
			"context": {every, hello[:300], func(_ *net.TCPConn, cancel context.CancelCauseFunc) { cancel(why) },
				why, "tls: no ClientHello: enough", syscall.ECONNRESET},
			"no Terminate":   {TLSServers{Passthrough: named("pass")}, hello, nil, layer.ErrNoRoute, "tls: no route", syscall.ECONNRESET},
			"no Passthrough": {TLSServers{}, made(sni("other")), nil, layer.ErrNoRoute, `tls: no route: no server for TLS with the name "other"`, syscall.ECONNRESET},
			"no Cleartext":   {TLSServers{}, []byte("x"), nil, layer.ErrNoRoute, "tls: no route", syscall.ECONNRESET},
		} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				client, accepted := pair()
				client.Write(tt.said)
				waiting := ctx
				if tt.do != nil {
					waiting = whenWaited(ctx, func() { tt.do(client, cancel) })
				}
				limit := 20 * time.Millisecond
				if !errors.Is(tt.want, layer.ErrTimeout) {
					limit = time.Hour
				}
				_, err := DetectTLS(ours, MatchServerName("web.default"), tt.to, WithDetectTimeout(limit)).Call(waiting, accepted)
				require.ErrorIs(t, err, tt.want)
				require.ErrorContains(t, err, tt.text)
				assert.NotErrorIs(t, err, layer.ErrNotReady)
				_, err = io.ReadAll(client)
				if tt.ends == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, tt.ends)
				}
			})
		}
	})
}

func TestDetectTLSNoServerName(t *testing.T) {
	ours, _ := identity(t, "web.default")
	hello := helloOf(t, &tls.Config{ServerName: "web.default"})
	synctest.Test(t, func(t *testing.T) {
		var network layertest.Network
		l, err := network.Listen("tcp", "10.0.0.1:443")
		require.NoError(t, err)
		defer l.Close()
		client, err := network.DialContext(t.Context(), "tcp", "10.0.0.1:443")
		require.NoError(t, err)
		defer client.Close()
		accepted, err := l.Accept()
		require.NoError(t, err)
		_, err = client.Write(hello)
		require.NoError(t, err)
		start := time.Now()
		_, err = DetectTLS(ours, MatchServerName("web.default"), TLSServers{Terminate: named("local")}, WithDetectTimeout(20*time.Millisecond)).
			Call(t.Context(), accepted)
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.ErrorContains(t, err, "tls: timeout: handshake (waited 20ms)")
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, 20*time.Millisecond, time.Since(start))
		_, err = io.ReadAll(client)
		require.NoError(t, err)
	})
}

// A connection that ends within a ClientHello goes to Cleartext.
func TestDetectTLSIncompleteHello(t *testing.T) {
	hello := helloOf(t, &tls.Config{ServerName: "web.default"})[:300]
	big := made("\x12\x34" + sized(2, string(make([]byte, 12000)))) // its name may be behind that
	for want, said := range map[string][]byte{"clear: ": hello, "pass: ": big} {
		ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
			client, accepted := pair()
			go DetectTLS(nil, nil, TLSServers{Passthrough: named("pass"), Cleartext: named("clear")}).Call(t.Context(), accepted)
			go func() {
				client.Write(said)
				client.CloseWrite()
			}()
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			assert.Equal(t, want+string(said), string(got))
		})
	}
}

func TestDetectTLSRejects(t *testing.T) {
	ours, roots := identity(t, "web.default")
	client, accepted := conntest.Pair(t)
	to := TLSServers{Terminate: rejecting(), Passthrough: rejecting(), Cleartext: rejecting()}
	_, err := client.Write(made(sni("other")))
	require.NoError(t, err)
	_, err = DetectTLS(ours, MatchServerName("web.default"), to).Call(t.Context(), accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)

	client, accepted = conntest.Pair(t)
	hands := make(chan error, 1)
	go func() {
		hands <- tls.Client(client, &tls.Config{ServerName: "web.default", RootCAs: roots}).Handshake()
	}()
	_, err = DetectTLS(ours, MatchServerName("web.default"), to).Call(t.Context(), accepted)
	require.ErrorContains(t, err, "tls: rejected after the first bytes were read: limit: not ready: full")
	assert.NotErrorIs(t, err, layer.ErrNotReady)
	<-hands

	client, accepted = conntest.Pair(t)
	go func() { hands <- tls.Client(client, &tls.Config{ServerName: "web.default"}).Handshake() }()
	_, err = DetectTLS(ours, MatchServerName("web.default"), to).Call(t.Context(), accepted)
	require.ErrorContains(t, err, "tls: handshake: remote error: tls: ")
	require.Error(t, <-hands, "it does not trust us")

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = DetectTLS(ours, MatchServerName(), to).Call(gone, accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

// A connection on which no whole ClientHello arrives is opaque: at the end of the time, for which
// the client waits only once, or at the end of its bytes.
func TestDetectTLSUndecided(t *testing.T) {
	hello := helloOf(t, &tls.Config{ServerName: "web.default"})[:300]
	for name, tt := range map[string]struct {
		said []byte
		ends bool
	}{
		"silence": {nil, false}, "half a hello": {hello, false}, "end": {nil, true}, "half a hello and end": {hello, true},
	} {
		t.Run(name, func(t *testing.T) {
			ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
				const limit = 100 * time.Millisecond
				client, accepted := pair()
				_, err := client.Write(tt.said)
				require.NoError(t, err)
				if tt.ends {
					require.NoError(t, client.CloseWrite())
				}
				var log bytes.Buffer
				inner := Detect(all3(), WithDetectTimeout(time.Hour))
				done := make(chan error, 1)
				start := time.Now()
				go func() {
					_, err := DetectTLS(nil, nil, TLSServers{Passthrough: named("pass"), Cleartext: inner}, WithDetectTimeout(limit),
						WithDetectLogger(debugLog(&log))).Call(t.Context(), accepted)
					done <- err
				}()
				got := make([]byte, len("opaque: ")+len(tt.said))
				_, err = io.ReadFull(client, got)
				require.NoError(t, err)
				assert.Equal(t, "opaque: "+string(tt.said), string(got))
				if !tt.ends {
					assert.GreaterOrEqual(t, time.Since(start), limit)
				}
				client.CloseWrite()
				require.NoError(t, <-done)
				assert.Equal(t, !tt.ends, strings.Contains(log.String(), "detection timed out"), log.String())
			})
		})
	}
}

// A client that stalls does not delay others.
func TestDetectTLSStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		svc := DetectTLS(nil, MatchServerName(), TLSServers{Cleartext: named("clear")})
		end, done := serving(t, &p, svc)
		silent := p.dial(t)
		synctest.Wait()
		start := time.Now()
		conn := p.dial(t)
		io.WriteString(conn, "x")
		got := make([]byte, len("clear: x"))
		_, err := io.ReadFull(conn, got)
		require.NoError(t, err)
		assert.Equal(t, "clear: x", string(got))
		assert.Zero(t, time.Since(start))
		n, err := silent.Read(got)
		require.NoError(t, err)
		assert.Equal(t, "clear: ", string(got[:n]))
		assert.Equal(t, 10*time.Second, time.Since(start))
		silent.Close()
		conn.Close()
		end()
		require.NoError(t, <-done)
	})
}

func TestDetectTLSSkips(t *testing.T) {
	client, accepted := conntest.Pair(t)
	toMail := func(_ context.Context, conn net.Conn) bool {
		dst, _ := OriginalDst(conn)
		return dst.Port() == 25
	}
	mail := OverrideAddrs(accepted, netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:25"))
	go DetectTLS(nil, nil, TLSServers{Cleartext: named("clear")}, WithSkipDetect(toMail)).Call(t.Context(), mail)
	client.CloseWrite()
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.Equal(t, "clear: ", string(got))
}

func TestDetectTLSDescribe(t *testing.T) {
	m := &layertest.Mock[net.Conn, ByteCount]{}
	d := DetectTLS(nil, nil, TLSServers{Terminate: Forward(to(nil)), Passthrough: m})
	assert.Equal(t, "tls        timeout=10s\n  local\n    forward\n      layer.Func\n  pass\n    layertest.Mock\n", layer.Describe(d).String())
	require.ErrorIs(t, layer.Poll(DetectTLS(nil, nil, TLSServers{Passthrough: m})), layer.ErrNotReady)
}
