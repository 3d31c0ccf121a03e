package tcplayer

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// atOnce is a connection that returns its first bytes together with an error. An io.Reader
// may do so, and a tls.Conn does at its end.
type atOnce struct {
	net.Conn
	text string
	err  error
}

func (a *atOnce) Read(p []byte) (int, error) {
	n := copy(p, a.text)
	a.text = a.text[n:]
	if a.text == "" {
		return n, a.err
	}
	return n, nil
}

// A client that sends its bytes and the end together is served.
func TestDetectBytesWithEnd(t *testing.T) {
	request := "GET / HTTP/1.1\r\n\r\n"
	for name, tt := range map[string]struct {
		first string
		svc   Server
		want  string
	}{
		"detect": {request, Detect(all3()), "one: " + request},
		"tls":    {request, DetectTLS(nil, nil, TLSServers{Cleartext: named("clear")}), "clear: " + request},
		"proxy":  {"PROXY UNKNOWN\r\n" + request, Transparent(ProxyProtocol(), rejecting(), named("direct")), "direct: " + request},
	} {
		for _, end := range []error{io.EOF, errors.New("broken")} {
			t.Run(name+" "+end.Error(), func(t *testing.T) {
				client, accepted := conntest.Pair(t)
				go tt.svc.Call(t.Context(), &atOnce{accepted, tt.first, end})
				got, err := io.ReadAll(client)
				require.NoError(t, err)
				assert.Equal(t, tt.want, string(got))
			})
		}
	}
}

// TLS 1.2 reads close_notify together with the bytes before it.
func TestDetectTLSBytesWithEnd(t *testing.T) {
	cfg, roots := identity(t, "web.default")
	client, accepted := conntest.Pair(t)
	inside := tls.Client(client, &tls.Config{ServerName: "web.default", RootCAs: roots, MaxVersion: tls.VersionTLS12})
	hands := make(chan error, 1)
	go func() { hands <- inside.Handshake() }()
	secure := tls.Server(accepted, cfg)
	require.NoError(t, secure.Handshake())
	require.NoError(t, <-hands)
	_, err := io.WriteString(inside, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, inside.CloseWrite())
	go Detect(all3()).Call(t.Context(), secure)
	got, err := io.ReadAll(inside)
	require.NoError(t, err)
	assert.Equal(t, "one: GET / HTTP/1.0\r\n\r\n", string(got))
}

// TLS continues after a pause of the client.
func TestDetectSilenceInTLS(t *testing.T) {
	cfg, roots := identity(t, "web.default")
	client, accepted := conntest.Pair(t)
	svc := DetectTLS(cfg, MatchServerName("web.default"), TLSServers{Terminate: Detect(all3(), WithDetectTimeout(10*time.Millisecond))})
	done := make(chan error, 1)
	go func() {
		_, err := svc.Call(t.Context(), accepted)
		done <- err
	}()
	inside := tls.Client(client, &tls.Config{ServerName: "web.default", RootCAs: roots})
	_, err := io.ReadFull(inside, make([]byte, len("opaque: ")))
	require.NoError(t, err)
	require.NoError(t, say(inside))
	require.NoError(t, inside.CloseWrite())
	_, err = io.ReadAll(inside)
	require.NoError(t, err)
	require.NoError(t, <-done)
}

// Without a certificate each client is rejected, and the process continues.
func TestDetectTLSWithoutConfig(t *testing.T) {
	client, accepted := conntest.Pair(t)
	_, err := client.Write(helloOf(t, &tls.Config{ServerName: "web.default"}))
	require.NoError(t, err)
	_, err = DetectTLS(nil, MatchServerName("web.default"), TLSServers{Terminate: named("local")}).Call(t.Context(), accepted)
	require.EqualError(t, err, "tls: handshake: tls: no certificates configured")
}

// Bytes that an earlier peek read are within the limit of this peek.
func TestDetectPeekLimit(t *testing.T) {
	request := "GET /" + strings.Repeat("a", maxDetect) + " HTTP/9\r\n\r\n"
	header := v2(0x20, 0, strings.Repeat(tlv, 300)) // needs a peek of 4 096 bytes
	pieces := map[string]func(net.Conn) net.Conn{
		"kernel": func(c net.Conn) net.Conn { return c },
		"read":   func(c net.Conn) net.Conn { return halves{hidden{c}} },
	}
	for name, wrap := range pieces {
		t.Run(name, func(t *testing.T) {
			client, accepted := conntest.Pair(t)
			_, err := io.WriteString(client, header+request)
			require.NoError(t, err)
			require.NoError(t, client.CloseWrite())
			go Transparent(ProxyProtocol(), rejecting(), Detect(all3())).Call(t.Context(), wrap(accepted))
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			assert.Equal(t, "one: "+request, string(got))
		})
	}
}
