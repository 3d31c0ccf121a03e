package sidecar_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkHandshake sends requests through two proxies that open a connection for each of
// them, because they are of HTTP/1.0. The difference of the CPU times with TLS and without
// is that of a handshake, of both sides together.
func BenchmarkHandshake(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as in a proxy
	for name, a := range map[string]*testProxy{"clear": clearMesh(b, served(b)), "tls": secureMesh(b, served(b))} {
		b.Run(name, func(b *testing.B) {
			conn, err := net.Dial("tcp", a.Addr)
			require.NoError(b, err)
			defer conn.Close()
			r := bufio.NewReader(conn)
			once := func() {
				_, err := io.WriteString(conn, "GET / HTTP/1.0\r\nHost: web.example\r\nConnection: keep-alive\r\n\r\n")
				require.NoError(b, err)
				rsp, err := http.ReadResponse(r, nil)
				require.NoError(b, err)
				require.Equal(b, http.StatusOK, rsp.StatusCode, rsp.Header)
				_, err = io.Copy(io.Discard, rsp.Body)
				require.NoError(b, err)
			}
			once()
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
