package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rawBackend keeps the bytes of the requests that it is sent, and answers each.
type rawBackend struct {
	net.Listener
	mu   sync.Mutex
	seen bytes.Buffer
}

func newRawBackend(t *testing.T) *rawBackend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &rawBackend{Listener: l}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return b
}

func (b *rawBackend) serve(conn net.Conn) {
	defer conn.Close()
	var own bytes.Buffer
	in := bufio.NewReader(io.TeeReader(conn, &own))
	req, err := http.ReadRequest(in)
	if err == nil {
		_, err = io.Copy(io.Discard, req.Body)
	}
	b.mu.Lock()
	b.seen.Write(own.Bytes())
	b.mu.Unlock()
	if err == nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	}
}

func (b *rawBackend) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.seen.Reset()
	return b.seen.String()
}

// What two parsers could read in two ways is answered with 400, and no backend
// sees it.
func TestAmbiguousRequestsAreRejected(t *testing.T) {
	b := newRawBackend(t)
	at := ":80=" + b.Addr().String()
	s := start(t, "-backend", "books-v1.example"+at, "-backend", "books-v2.example"+at, "-backend", "books-next.example"+at)
	const auth = "Host: a\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n"
	for name, tt := range map[string]struct{ request, status string }{
		"plain":           {"GET /books HTTP/1.1\r\n" + auth + "\r\n", "200"},
		"two framings":    {"POST /books HTTP/1.1\r\n" + auth + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /books HTTP/1.1\r\n\r\n", "400"},
		"bare LF":         {"GET /books HTTP/1.1\n" + auth + "\r\n", "400"},
		"obs-fold":        {"GET /books HTTP/1.1\r\n" + auth + "X-A: b\r\n c\r\n\r\n", "400"},
		"HTTP/1.2":        {"GET /books HTTP/1.2\r\n" + auth + "\r\n", "505"},
		"space and colon": {"POST /books HTTP/1.1\r\n" + auth + "Content-Length : 5\r\n\r\nhello", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.clients, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			_, err = io.WriteString(conn, tt.request)
			require.NoError(t, err)
			rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			rsp.Body.Close()
			require.Equal(t, tt.status, rsp.Status[:3])
			require.Equal(t, tt.status == "200", b.take() != "")
		})
	}
}

// A target that is not ASCII reaches no backend, whatever its form.
func TestTargetsAreASCII(t *testing.T) {
	b := newRawBackend(t)
	at := ":80=" + b.Addr().String()
	s := start(t, "-backend", "books-v1.example"+at, "-backend", "books-v2.example"+at, "-backend", "books-next.example"+at)
	for _, target := range []string{"/books/\xff\xfe", "http://a/books/\xff\xfe", "/books?a=\xff", "http://a/books?a=\xff", "http://a/books/\xc3\xa9?\xc3\xa9"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.clients, "http://"))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		rsp.Body.Close()
		conn.Close()
		require.Equal(t, http.StatusBadRequest, rsp.StatusCode, "%q", target)
		require.Empty(t, b.take(), "%q", target)
	}
}
