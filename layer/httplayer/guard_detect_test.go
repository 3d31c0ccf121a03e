package httplayer

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// overConn tells when its server is done with it.
type overConn struct {
	net.Conn
	over context.CancelFunc
}

func (c overConn) Close() error {
	defer c.over()
	return c.Conn.Close()
}

func (c overConn) CloseWrite() error { return c.Conn.(halfCloser).CloseWrite() }

// detected runs what a proxy does with a connection: where it was going, whether
// it is TLS for us, what is spoken, and a guard before the server of HTTP.
func detected(t *testing.T, guard *Guard, cfg *tls.Config) (addr string) {
	t.Helper()
	conns := make(pipes)
	serveOn(t, conns, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			shapes(w, r)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, buffered)
		}
	}))
	toHTTP := layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		over, done := context.WithCancel(ctx)
		conns <- guard.Conn(overConn{conn, done})
		<-over.Done()
		return tcplayer.ByteCount{}, nil
	})
	detect := tcplayer.Detect(tcplayer.Protocols{HTTP1: toHTTP, HTTP2: toHTTP})
	front := tcplayer.DetectTLS(cfg, tcplayer.MatchServerName("gotower.test"), tcplayer.TLSServers{Terminate: detect, Cleartext: detect})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	fixed := tcplayer.FixedDst(netip.MustParseAddrPort("192.0.2.1:80"))
	go func() {
		served <- tcplayer.Serve(ctx, l, tcplayer.Transparent(fixed, front, nil), tcplayer.WithShutdownTimeout(patience))
	}()
	t.Cleanup(func() {
		end()
		assert.NoError(t, <-served)
	})
	return l.Addr().String()
}

// saying sends text, and expects answers of the statuses given.
func saying(t *testing.T, conn net.Conn, text string, want []string) *bufio.Reader {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	go say(conn, text)
	in := bufio.NewReader(conn)
	for _, status := range want {
		rsp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		assert.Equal(t, status, rsp.Status[:3], "%q", text)
		if rsp.StatusCode != http.StatusSwitchingProtocols {
			_, err = io.Copy(io.Discard, rsp.Body)
			require.NoError(t, err)
		}
	}
	return in
}

// The guard stands behind the detection, and what that has looked at passes it
// from the first byte, in clear and inside of TLS.
func TestGuardBehindDetection(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	web.Close()
	guard := NewGuard()
	addr := detected(t, guard, &tls.Config{Certificates: web.TLS.Certificates})
	for name, dial := range map[string]func() (net.Conn, error){
		"clear": func() (net.Conn, error) { return net.Dial("tcp", addr) },
		"tls": func() (net.Conn, error) {
			return tls.Dial("tcp", addr, &tls.Config{ServerName: "gotower.test", InsecureSkipVerify: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			talk := func(text string, want ...string) (net.Conn, *bufio.Reader) {
				conn, err := dial()
				require.NoError(t, err)
				return conn, saying(t, conn, text, want)
			}
			get := "GET /length HTTP/1.1\r\nHost: a\r\n\r\n"
			conn, in := talk(get+get+strings.Replace(get, "\r\n\r\n", "\r\nX: "+strings.Repeat("x", 5000)+"\r\n\r\n", 1), "200", "200", "200")
			say(conn, get)
			_, err := http.ReadResponse(in, nil)
			require.NoError(t, err, "kept alive")

			cuts := guard.Rejected(ConflictingLength)
			_, in = talk(get+"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+get, "200", "400")
			_, err = in.ReadByte()
			require.Error(t, err, "it is closed")
			assert.Equal(t, cuts+1, guard.Rejected(ConflictingLength))

			conn, in = talk("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", "101")
			say(conn, "Content-Length: 1\nX")
			got := make([]byte, 19)
			_, err = io.ReadFull(in, got)
			require.NoError(t, err)
			assert.Equal(t, "Content-Length: 1\nX", string(got))

			h2 := &http.Transport{Protocols: new(http.Protocols)}
			h2.DialContext = func(context.Context, string, string) (net.Conn, error) { return dial() }
			h2.Protocols.SetUnencryptedHTTP2(true)
			defer h2.CloseIdleConnections()
			rsp, err := (&http.Client{Transport: h2}).Get("http://" + addr + "/length")
			require.NoError(t, err)
			defer rsp.Body.Close()
			body, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			assert.Equal(t, "hello 2", string(body)+" "+rsp.Proto[5:6])
		})
	}
}
