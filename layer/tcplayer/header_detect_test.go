package tcplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// agreement is both ends of a TLS connection over TCP after the handshake, with
// or without agreement on a header. The client writes in small pieces.
func agreement(t *testing.T, protocols ...string) (client *tls.Conn, raw *net.TCPConn, accepted *tls.Conn) {
	t.Helper()
	cfg, roots := identity(t, "web.default")
	cfg.NextProtos = []string{TransportProtocol}
	raw, far := conntest.Pair(t)
	client = tls.Client(raw, &tls.Config{ServerName: "web.default", RootCAs: roots, NextProtos: protocols})
	accepted = tls.Server(far, cfg)
	hands := make(chan error, 1)
	go func() { hands <- client.Handshake() }()
	require.NoError(t, accepted.Handshake())
	require.NoError(t, <-hands)
	require.NoError(t, client.SetDeadline(time.Now().Add(30*time.Second)))
	return client, raw, accepted
}

// stating is a Server that responds with the header, the destination and the
// bytes read.
func stating() Server {
	return serverFunc(func(ctx context.Context, conn net.Conn) (ByteCount, error) {
		h, ok := TransportHeaderFromContext(ctx)
		dst, known := OriginalDst(conn)
		_, state := TLSState(conn)
		own := addrPort(conn.LocalAddr())
		what := fmt.Sprintf("%d %q %v, header %t, address is its %t, asked for it %t, TLS %t",
			h.Port, h.Name, h.Protocol, ok, own.Port() == h.Port, known && dst == own, state)
		return named(what).Call(ctx, conn)
	})
}

func TestDetectTransport(t *testing.T) {
	svc := DetectTransport(TransportServers{Header: stating(), None: named("none")})
	header := string(TransportHeader{Port: 4040, Protocol: HTTP2}.AppendTo(nil))
	gateway := string(TransportHeader{Port: 4040, Name: "web.default"}.AppendTo(nil))
	big := string(prefaced(append([]byte("\x08\x01\x22\xf0\xff\x03"), make([]byte, 65520)...))) // a field that is not known
	for name, tt := range map[string]struct {
		offers     []string
		said, want string
	}{
		"header": {[]string{TransportProtocol}, header + "hello",
			`4040 "" HTTP/2, header true, address is its true, asked for it true, TLS true: hello`},
		"header only": {[]string{TransportProtocol}, header,
			`4040 "" HTTP/2, header true, address is its true, asked for it true, TLS true: `},
		"gateway": {[]string{TransportProtocol}, gateway + header,
			`4040 "web.default" opaque, header true, address is its false, asked for it false, TLS true: ` + header},
		"maximum size": {[]string{TransportProtocol}, big + "hello",
			`1 "" opaque, header true, address is its true, asked for it true, TLS true: hello`},
		"agreed, no header":          {[]string{TransportProtocol}, "GET / HTTP/1.1\r\n\r\n", "none: GET / HTTP/1.1\r\n\r\n"},
		"agreed, less than a header": {[]string{TransportProtocol}, header[:12], "none: " + header[:12]},
		"agreed, almost a header":    {[]string{TransportProtocol}, header[:17] + "/v2", "none: " + header[:17] + "/v2"},
		"not agreed":                 {nil, header + "hello", "none: " + header + "hello"},
		"not agreed, silent":         {nil, "", "none: "},
	} {
		for _, size := range []int{1 << 20, 7, 1} {
			if size < 100 && len(tt.said) > 10_000 {
				continue
			}
			t.Run(fmt.Sprintf("%s in pieces of %d", name, size), func(t *testing.T) {
				client, _, accepted := agreement(t, tt.offers...)
				done := make(chan error, 1)
				go func() {
					_, err := svc.Call(t.Context(), accepted)
					done <- err
				}()
				go func() {
					for said := tt.said; said != ""; {
						n := min(size, len(said))
						io.WriteString(client, said[:n])
						said = said[n:]
					}
					client.CloseWrite()
				}()
				got, err := io.ReadAll(client)
				require.NoError(t, err)
				assert.Equal(t, tt.want, string(got))
				require.NoError(t, <-done)
			})
		}
	}
}

// In cleartext the first bytes are never a header.
func TestDetectTransportCleartext(t *testing.T) {
	header := string(TransportHeader{Port: 4040}.AppendTo(nil))
	ways(t, func(t *testing.T, pair func() (*net.TCPConn, net.Conn)) {
		client, accepted := pair()
		go DetectTransport(TransportServers{Header: stating(), None: named("none")}).Call(t.Context(), accepted)
		io.WriteString(client, header)
		client.CloseWrite()
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Equal(t, "none: "+header, string(got))
	})
}

func TestDetectTransportEnds(t *testing.T) {
	header := string(TransportHeader{Port: 4040}.AppendTo(nil))
	every := TransportServers{Header: stating(), None: named("none")}
	why := errors.New("enough")
	for name, tt := range map[string]struct {
		to   TransportServers
		said string
		do   func(client *tls.Conn, cancel context.CancelCauseFunc)
		want error
		text string
		kind string
	}{
		"closed without a byte": {every, "", func(c *tls.Conn, _ context.CancelCauseFunc) { c.CloseWrite() },
			io.ErrUnexpectedEOF, "transport: no header: unexpected EOF", "i/o"},
		"half a header": {every, header[:len(header)-1], func(c *tls.Conn, _ context.CancelCauseFunc) { c.CloseWrite() },
			io.ErrUnexpectedEOF, "transport: no header: unexpected EOF", "i/o"},
		"silence": {every, "", nil, layer.ErrTimeout, "transport: timeout: no header (waited 20ms)", "i/o"},
		"half a header, silence": {every, header[:29], nil,
			layer.ErrTimeout, "transport: timeout: no header (waited 20ms)", "i/o"},
		"context": {every, header[:29], func(_ *tls.Conn, cancel context.CancelCauseFunc) { cancel(why) },
			why, "transport: no header: enough", "i/o"},
		"no port": {every, string(TransportHeader{}.AppendTo(nil)), nil, nil, "transport: bad header: transport header: port 0", "i/o"},
		"too big": {every, headerPreface + "\x00\x01\x00\x01", nil,
			nil, "transport: bad header: transport header has 65537 bytes, limit 65536", "i/o"},
		"no Header": {TransportServers{None: named("none")}, header, nil, layer.ErrNoRoute, "transport: no route", "unexpected"},
		"no None":   {TransportServers{Header: stating()}, "GET / HTTP/1.1", nil, layer.ErrNoRoute, "transport: no route", "unexpected"},
		"refused":   {TransportServers{Header: rejecting()}, header, nil, nil, "transport: rejected after the first bytes were read", "loadshed"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			client, raw, accepted := agreement(t, TransportProtocol)
			io.WriteString(client, tt.said)
			if tt.do != nil {
				tt.do(client, cancel)
			}
			patience := 20 * time.Millisecond
			if !errors.Is(tt.want, layer.ErrTimeout) {
				patience = time.Hour
			}
			_, err := DetectTransport(tt.to, WithDetectTimeout(patience)).Call(ctx, accepted)
			if name != "context" { // the context may have ended before the first read
				require.ErrorContains(t, err, tt.text)
				assert.NotErrorIs(t, err, layer.ErrNotReady)
				assert.Equal(t, tt.kind, ErrorKind(err))
			}
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			if name == "context" {
				return
			}
			_, err = io.ReadAll(raw)
			if tt.want == io.ErrUnexpectedEOF {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
		})
	}
}

// The wait ends with the context.
func TestDetectTransportCanceled(t *testing.T) {
	client, raw, accepted := agreement(t, TransportProtocol)
	io.WriteString(client, headerPreface)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	read := &reading{Conn: accepted, began: make(chan struct{}, 10)}
	go func() {
		<-read.began // the preface
		<-read.began // the rest, which does not come
		cancel(why)
	}()
	_, err := DetectTransport(TransportServers{Header: stating()}).Call(ctx, read)
	require.EqualError(t, err, "transport: no header: enough")
	_, err = io.ReadAll(raw)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// reading is a connection that reports reads.
type reading struct {
	net.Conn
	began chan struct{}
}

func (r *reading) Read(p []byte) (int, error) {
	r.began <- struct{}{}
	return r.Conn.Read(p)
}

func (r *reading) NetConn() net.Conn { return r.Conn }

// An unread connection may be rejected and served by another server.
func TestDetectTransportRejects(t *testing.T) {
	client, _, accepted := agreement(t)
	io.WriteString(client, "hello")
	client.CloseWrite()
	_, err := DetectTransport(TransportServers{None: rejecting()}).Call(t.Context(), accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = DetectTransport(TransportServers{None: named("none")}).Call(gone, accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	go named("next").Call(t.Context(), accepted)
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.Equal(t, "next: hello", string(got))
}

func TestDetectTransportSkips(t *testing.T) {
	client, _, accepted := agreement(t, TransportProtocol)
	every := func(context.Context, net.Conn) bool { return true }
	client.CloseWrite()
	go DetectTransport(TransportServers{None: named("none")}, WithSkipDetect(every)).Call(t.Context(), accepted)
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.Equal(t, "none: ", string(got))
	_, ok := TransportHeaderFromContext(t.Context())
	assert.False(t, ok)
}

func TestDetectTransportDescribe(t *testing.T) {
	m := &layertest.Mock[net.Conn, ByteCount]{}
	d := DetectTransport(TransportServers{Header: Forward(to(nil)), None: m})
	assert.Equal(t, "transport  timeout=10s\n  header\n    forward\n      layer.Func\n  none\n    layertest.Mock\n", layer.Describe(d).String())
	require.ErrorIs(t, layer.Poll(DetectTransport(TransportServers{None: m})), layer.ErrNotReady)
}

// BenchmarkDetectTransport measures the cost of a header, compared with reading
// as many bytes.
func BenchmarkDetectTransport(b *testing.B) {
	header := TransportHeader{Port: 4040, Name: "web.default.svc.cluster.local", Protocol: HTTP2}.AppendTo(nil)
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := parseTransportHeader(header); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("append", func(b *testing.B) {
		buf := make([]byte, 0, 128)
		h := TransportHeader{Port: 4040, Name: "web.default.svc.cluster.local", Protocol: HTTP2}
		b.ReportAllocs()
		for b.Loop() {
			buf = h.AppendTo(buf[:0])
		}
	})
	b.Run("serve", func(b *testing.B) {
		near, _ := conntest.Pair(b)
		d := DetectTransport(TransportServers{Header: serverFunc(func(context.Context, net.Conn) (ByteCount, error) { return ByteCount{}, nil })})
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.Call(b.Context(), spoken{&atOnce{near, string(header), nil}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// spoken is a connection on which a header was agreed.
type spoken struct{ *atOnce }

func (spoken) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{NegotiatedProtocol: TransportProtocol}
}
