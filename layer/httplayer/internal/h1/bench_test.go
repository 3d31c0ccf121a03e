package h1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

const (
	smallRequest   = "GET /bench HTTP/1.1\r\nHost: 127.0.0.1:18080\r\nUser-Agent: loadgen\r\nAccept: */*\r\n\r\n"
	browserRequest = "GET /static/app/main.js?v=12345 HTTP/1.1\r\nhost: www.example.com\r\nuser-agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36\r\naccept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\naccept-language: en-US,en;q=0.5\r\naccept-encoding: gzip, deflate, br\r\ncookie: session=0123456789abcdef0123456789abcdef; theme=dark; lang=en\r\nreferer: https://www.example.com/index.html\r\nx-request-id: 4f2d1c3b-aaaa-bbbb-cccc-1234567890ab\r\nx-forwarded-for: 10.1.2.3\r\ncache-control: no-cache\r\n\r\n"
	smallResponse  = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n"
)

// memoryConn receives in a number of times and keeps nothing that is written.
type memoryConn struct {
	net.Conn
	in, rest []byte
	reads    int
	written  chan struct{} // if it is not nil, in is received once for each Write
}

func (c *memoryConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.written != nil {
			if _, ok := <-c.written; !ok {
				return 0, io.EOF
			}
		}
		if c.reads == 0 {
			return 0, io.EOF
		}
		c.reads--
		c.rest = c.in
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *memoryConn) Write(p []byte) (int, error) {
	if c.written != nil {
		c.written <- struct{}{}
	}
	return len(p), nil
}
func (*memoryConn) Close() error                    { return nil }
func (*memoryConn) SetReadDeadline(time.Time) error { return nil }
func (*memoryConn) SetDeadline(time.Time) error     { return nil }
func (*memoryConn) RemoteAddr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// BenchmarkParse parses a request, builds it, and appends it again.
func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{"small": smallRequest, "browser": browserRequest} {
		b.Run(name, func(b *testing.B) {
			c := NewServerConn(context.Background(), &memoryConn{}, &message.ServerConfig{Exchange: func(*http.Request) (*http.Response, error) { return nil, nil }})
			out := make([]byte, 0, smallSize)
			b.ReportAllocs()
			for b.Loop() {
				c.reserve() // newRequest has released the buffer
				c.r, c.w = 0, copy(c.space(), text)
				c.head.reset()
				n, err := c.head.parseRequest(c.unread())
				if err != nil {
					b.Fatal(err)
				}
				r, req, err := c.newRequest(n)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := appendRequest(out, req, lengthOfRequest(req), r.arrived); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/net-http", func(b *testing.B) {
			in := bytes.NewReader(nil)
			r, w := bufio.NewReader(in), bufio.NewWriter(io.Discard)
			b.ReportAllocs()
			for b.Loop() {
				in.Reset([]byte(text))
				r.Reset(in)
				req, err := http.ReadRequest(r)
				if err != nil {
					b.Fatal(err)
				}
				req.Write(w)
				w.Flush()
			}
		})
	}
}

// BenchmarkExchange is a proxied request in memory: parsed, sent on, answered with
// 1 KiB.
func BenchmarkExchange(b *testing.B) {
	for name, text := range map[string]string{"small": smallRequest, "browser": browserRequest} {
		b.Run(name, func(b *testing.B) {
			written := make(chan struct{}, 1)
			defer close(written)
			up := NewClientConn(&memoryConn{in: []byte(smallResponse + strings.Repeat("x", 1024)), reads: 1 << 30, written: written},
				func(*ClientConn, bool) {})
			conn := &memoryConn{in: []byte(text), reads: b.N}
			cfg := &message.ServerConfig{Exchange: up.RoundTrip, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler)}
			b.ReportAllocs()
			conn.reads = b.N
			b.ResetTimer()
			require.NoError(b, NewServerConn(context.Background(), conn, cfg).Serve())
		})
	}
}

// BenchmarkHandler is a request to an http.Handler in memory.
func BenchmarkHandler(b *testing.B) {
	page := bytes.Repeat([]byte("x"), 1024)
	conn := &memoryConn{in: []byte(smallRequest), reads: b.N}
	cfg := &message.ServerConfig{
		Exchange: handled(func(w http.ResponseWriter, _ *http.Request) { w.Write(page) }),
		Sweeper:  new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler),
	}
	b.ReportAllocs()
	b.ResetTimer()
	require.NoError(b, NewServerConn(context.Background(), conn, cfg).Serve())
}

// BenchmarkProxy sends requests over loopback through a proxy of the engine, and
// through one of net/http.
func BenchmarkProxy(b *testing.B) {
	up := upstreamText(b, smallResponse+strings.Repeat("x", 1024))
	engine, _ := proxy(b, up)
	target, err := url.Parse("http://" + up)
	require.NoError(b, err)
	reverse := httptest.NewServer(httputil.NewSingleHostReverseProxy(target))
	b.Cleanup(reverse.Close)
	post := "POST /bench HTTP/1.1\r\nHost: a\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024)
	for name, text := range map[string]string{"GET": smallRequest, "POST": post} {
		b.Run(name+"/engine", func(b *testing.B) { benchProxy(b, engine.addr, text) })
		b.Run(name+"/ReverseProxy", func(b *testing.B) { benchProxy(b, reverse.Listener.Addr().String(), text) })
	}
}

func benchProxy(b *testing.B, addr, text string) {
	conn := dial(b, addr)
	r := bufio.NewReader(conn)
	in := []byte(text)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(in); err != nil {
			b.Fatal(err)
		}
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				b.Fatal(err)
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := r.Discard(1024); err != nil {
			b.Fatal(err)
		}
	}
}

// upstreamText answers each read of a request with the same text.
func upstreamText(t testing.TB, text string) string {
	answer := []byte(text)
	return script(t, func(conn net.Conn, _ *bufio.Reader) {
		b := make([]byte, 64<<10)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	})
}
