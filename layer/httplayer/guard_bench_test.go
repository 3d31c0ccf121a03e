package httplayer

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// guardHead is what a browser sends, in 432 bytes.
const guardHead = "GET /api/leaderboard?view=all HTTP/1.1\r\nHost: web.emojivoto.svc.cluster.local\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n" +
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\n" +
	"Accept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\nCookie: session=0123456789abcdef\r\nPragma: no-cache\r\n\r\n"

// BenchmarkGuardScan is what the guard does itself with a request.
func BenchmarkGuardScan(b *testing.B) {
	data := strings.Repeat("x", 4096)
	chunk := strconv.FormatInt(int64(len(data)), 16) + "\r\n" + data + "\r\n"
	for name, text := range map[string]string{
		"head 432":            guardHead,
		"head 60":             "GET /hello HTTP/1.1\r\nHost: web\r\nUser-Agent: Go-http-client/1.1\r\n\r\n",
		"64 KiB in a body":    "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 65536\r\n\r\n" + strings.Repeat(data, 16),
		"64 KiB in 16 chunks": "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat(chunk, 16) + "0\r\n\r\n",
	} {
		b.Run(name, func(b *testing.B) {
			p := []byte(text)
			s := &guardScan{step: (*guardScan).preface}
			b.ReportAllocs()
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				if s.scan(p) != len(p) {
					b.Fatal(s.bad)
				}
			}
		})
	}
}

// BenchmarkGuardServer is a request to net/http on loopback, with and without.
func BenchmarkGuardServer(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(map[bool]string{false: "bare", true: "guarded"}[with], func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			addr := l.Addr().String()
			if with {
				l = NewGuard().Listener(l)
			}
			serveOn(b, l, http.HandlerFunc(small))
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			say(conn, guardHead)
			answer := make([]byte, 4096)
			n, err := conn.Read(answer)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				say(conn, guardHead)
				if _, err := io.ReadFull(conn, answer[:n]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
