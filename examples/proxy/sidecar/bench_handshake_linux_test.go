package sidecar_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// BenchmarkHandshake opens a connection to a proxy's inbound side for each request, with mutual TLS
// and another proxy's configuration. The difference between the CPU times with and without TLS is
// the cost of a handshake, for both sides together. Proxies resume sessions, unless they have not
// seen the other's certificate yet: the row full.
func BenchmarkHandshake(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // like a proxy
	app := served(b)
	m := meshOf(b, app)
	cleartext := newTestProxy(b, m.ctl.addr, func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(app) })
	resumed := m.of(b, clientName).Client(serverName, serverName)
	full := resumed.Clone()
	full.ClientSessionCache = nil
	for _, row := range []struct {
		name string
		addr string
		tls  *tls.Config // nil: cleartext
	}{{"clear", cleartext.Inbound, nil}, {"resumed", m.b.Inbound, resumed}, {"full", m.b.Inbound, full}} {
		b.Run(row.name, func(b *testing.B) {
			once := func() (resumed bool) {
				conn, err := net.Dial("tcp", row.addr)
				require.NoError(b, err)
				defer func() { conn.Close() }()
				if row.tls != nil {
					secure := tls.Client(conn, row.tls)
					require.NoError(b, secure.Handshake())
					conn, resumed = secure, secure.ConnectionState().DidResume
				}
				_, err = io.WriteString(conn, "GET / HTTP/1.0\r\nHost: web.example\r\n\r\n")
				require.NoError(b, err)
				rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(b, err)
				require.Equal(b, http.StatusOK, rsp.StatusCode, rsp.Header)
				_, err = io.Copy(io.Discard, rsp.Body)
				require.NoError(b, err)
				return resumed
			}
			once()
			require.Equal(b, row.name == "resumed", once())
			before := usedCPU(b)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
			b.ReportMetric(float64((usedCPU(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// usedCPU returns the CPU time of this process.
func usedCPU(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
