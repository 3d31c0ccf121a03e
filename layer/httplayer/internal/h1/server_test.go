package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// strict are requests that the server rejects, by the status.
var strict = []struct {
	name, request string
	status        int
}{
	{"CR first", "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"CR before CRLF", "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\r\n\r\n", 400},
	{"garbage without an end", "\x16\x03\x01", 400},
	{"garbage after the method", "GET /\x01", 400},
	{"garbage for the version", "GET / FTP", 400},
	{"garbage for a field", "GET / HTTP/1.1\r\nabc\r\n", 400},
	{"HTTP/0.9", "GET /\r\n", 400},
	{"long request line", "GET /" + strings.Repeat("a", 20<<10), 414},
	{"no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"odd method", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"space after version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
	{"tab", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"no version", "GET /\r\nHost: a\r\n\r\n", 400},
	{"lower case version", "GET / http/1.1\r\nHost: a\r\n\r\n", 400},
	{"version 2.0", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
	{"long version", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400},
	{"fragment", "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"control in target", "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"relative target", "GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"bad escape", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"asterisk with GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"user information", "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"absolute without host", "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"escaped host", "GET http://u%80/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"opaque", "GET http:a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"CONNECT to a path", "CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"CONNECT without port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"CONNECT with body", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na", 400},
	{"bare CR in value", "GET / HTTP/1.1\r\nHost: a\r\nA: b\rc\r\n\r\n", 400},
	{"bare CR in request line", "GET / HTTP/1.1\rHost: a\r\n\r\n", 400},
	{"NUL in value", "GET / HTTP/1.1\r\nHost: a\r\nA: b\x00\r\n\r\n", 400},
	{"folded", "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", 400},
	{"space first", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
	{"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
	{"no colon", "GET / HTTP/1.1\r\nHost: a\r\nabc\r\n\r\n", 400},
	{"no name", "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400},
	{"odd name", "GET / HTTP/1.1\r\nHost: a\r\na(b: c\r\n\r\n", 400},
	{"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
	{"two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
	{"two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400},
	{"odd Host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
	{"Host with user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
	{"length with sign", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400},
	{"negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\na", 400},
	{"empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400},
	{"hexadecimal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\na", 400},
	{"long length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000000000000\r\n\r\na", 400},
	{"same lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400},
	{"list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na", 400},
	{"length and chunks", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"chunked twice", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"chunked in 1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"other coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
	{"identity", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 501},
	{"control in value", "GET / HTTP/1.1\r\nHost: a\r\nA: b\x01c\r\n\r\n", 400},
	{"DEL in value", "GET / HTTP/1.1\r\nHost: a\r\nA: bbbbbbbb\x7f\r\n\r\n", 400},
	{"vertical tab in coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400},
	{"long headers", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", 431},
	{"many fields", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a:\r\n", 4001) + "\r\n", 431},
	{"endless headers", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 20<<10), 431},
}

func TestServerRejects(t *testing.T) {
	calls := atomic.Int32{}
	s := serve(t, &message.ServerConfig{MaxHeaderBytes: 16 << 10, Exchange: handled(func(http.ResponseWriter, *http.Request) { calls.Add(1) })})
	for _, tt := range strict {
		t.Run(tt.name, func(t *testing.T) {
			got := exchangeRaw(t, s.addr, tt.request)
			assert.Regexp(t, fmt.Sprintf("(?s)^HTTP/1.1 %d [^\r]*\r\n.*Content-Length: 0\r\nConnection: close\r\n\r\n$", tt.status), got)
		})
	}
	assert.Zero(t, calls.Load())
	require.Eventually(t, func() bool { return len(s.errors()) >= len(strict) }, patience, 10*time.Millisecond, "%d", len(strict))
	for _, err := range s.errors() {
		syntax, ok := errors.AsType[*SyntaxError](err)
		require.True(t, ok, err)
		assert.NotEmpty(t, syntax.Reason)
	}
}

func TestServerAccepts(t *testing.T) {
	s := serve(t, &message.ServerConfig{Exchange: handledBy(http.HandlerFunc(echo))})
	for name, tt := range map[string]struct{ request, want string }{
		"many fields": {"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 900), "X-Uri: /\r\n"},
		"large field": {"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", 100<<10) + "\r\n", "aaaa\r\n"},
		"spaces":      {"GET / HTTP/1.1\r\nhost:\t a \t\r\nx-a:b\r\n", "X-A: b\r\n"},
		"empty Host":  {"GET / HTTP/1.1\r\nHost:\r\n", "X-Uri: /\r\n"},
		"absolute":    {"GET http://b:81/c?d HTTP/1.1\r\nHost: a\r\n", "X-Host: b:81\r\n"},
		"asterisk":    {"OPTIONS * HTTP/1.1\r\nHost: a\r\n", "X-Uri: *\r\n"},
		"IPv6":        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n", "X-Host: [::1]:80\r\n"},
		"obs-text":    {"GET / HTTP/1.1\r\nHost: a\r\nX-A: \xe4\r\n", "X-A: \xe4\r\n"},
		"no Host":     {"GET / HTTP/1.0\r\n", "X-Proto: HTTP/1.0\r\n"},
		"two slashes": {"GET //a/b HTTP/1.1\r\nHost: a\r\n", "X-Uri: //a/b\r\n"},
		"query marks": {"GET /?? HTTP/1.1\r\nHost: a\r\n", "X-Uri: /??\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := exchangeRaw(t, s.addr, tt.request+"Connection: close\r\n\r\n")
			assert.Regexp(t, `^HTTP/1\.[01] 200 OK\r\n`, got)
			assert.Contains(t, got, tt.want)
		})
	}
	assert.Empty(t, s.errors())
}

func TestServerChunks(t *testing.T) {
	t.Parallel()
	s := serve(t, &message.ServerConfig{Exchange: handledBy(http.HandlerFunc(echo))})
	for body, want := range map[string]string{
		"3\r\nabc\r\n0\r\n\r\n":                           "abc",
		"003\r\nabc\r\n02;a=b;c=\"d\"\r\nde\r\n0\r\n\r\n": "abcde",
		"A\r\n0123456789\r\n0\r\nX-Trailer: a\r\n\r\n":    "0123456789",
		"0\r\n\r\n":                                              "",
		"3 \r\nabc\r\n0\t\r\n\r\n":                               "abc",
		"3 ;a=b\r\nabc\r\n0\r\nA: b\n\n":                         "abc",
		" 3\r\nabc\r\n0\r\n\r\n":                                 "error",
		"3\r\nabc\r\n0\n\r\n":                                    "error",
		"3;a\rb\r\nabc\r\n0\r\n\r\n":                             "error",
		"3\nabc\r\n0\r\n\r\n":                                    "error",
		"3\r\nabcd\r\n0\r\n\r\n":                                 "error",
		"3\r\nabc\n0\r\n\r\n":                                    "error",
		"+3\r\nabc\r\n0\r\n\r\n":                                 "error",
		"0x3\r\nabc\r\n0\r\n\r\n":                                "error",
		"\r\nabc\r\n0\r\n\r\n":                                   "error",
		"g\r\nabc\r\n0\r\n\r\n":                                  "error",
		"3;\x00\r\nabc\r\n0\r\n\r\n":                             "abc",
		"3;" + strings.Repeat("a", 300) + "\r\nabc\r\n0\r\n\r\n": "abc",
		"3;" + strings.Repeat("a", 9000):                         "error",
		"00000000000000003\r\nabc\r\n0\r\n\r\n":                  "abc",
		"ffffffffffffffff\r\nabc\r\n0\r\n\r\n":                   "error",
		"0\r\na b: c\r\n\r\n":                                    "error",
		"0\r\n a: c\r\n\r\n":                                     "error",
	} {
		for _, step := range []int{1, 1000} {
			conn := dial(t, s.addr)
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
			for rest := []byte(body); len(rest) > 0; rest = rest[min(step, len(rest)):] {
				conn.Write(rest[:min(step, len(rest))])
				if step == 1 {
					time.Sleep(10 * time.Microsecond)
				}
			}
			rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if want == "error" {
				assert.Error(t, err, "%q", body)
				continue
			}
			if assert.NoError(t, err, "%q", body) {
				assert.Equal(t, want, readAll(t, rsp), "%q", body)
			}
		}
	}
}

func TestServerRequest(t *testing.T) {
	var got *http.Request
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		got = r
		assert.NotNil(t, r.Context().Value(http.LocalAddrContextKey).(net.Addr))
		io.Copy(io.Discard, r.Body)
	})})
	conn := dial(t, s.addr)
	io.WriteString(conn, "PUT /a?b HTTP/1.1\r\nHost: h:1\r\nTransfer-Encoding: chunked\r\nTrailer: t1\r\nConnection: close\r\nA: 1\r\na: 2\r\n\r\n"+
		"1\r\na\r\n0\r\nT1: x\r\nT2: y\r\nContent-Length: 5\r\n\r\n")
	_, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, http.MethodPut, got.Method)
	assert.Equal(t, "/a", got.URL.Path)
	assert.Equal(t, "b", got.URL.RawQuery)
	assert.Equal(t, "h:1", got.Host)
	assert.Equal(t, conn.LocalAddr().String(), got.RemoteAddr)
	assert.Equal(t, int64(-1), got.ContentLength)
	assert.Equal(t, []string{"chunked"}, got.TransferEncoding)
	assert.Equal(t, http.Header{"T1": {"x"}, "T2": {"y"}}, got.Trailer)
	assert.Equal(t, http.Header{"A": {"1", "2"}}, got.Header)
	assert.True(t, got.Close)
	assert.Error(t, got.Context().Err())
}

func TestServerRemovesHopByHop(t *testing.T) {
	var got http.Header
	s := serve(t, &message.ServerConfig{Exchange: func(r *http.Request) (*http.Response, error) {
		got = r.Header
		return &http.Response{StatusCode: 204}, nil
	}})
	exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, x-a\r\nX-A: 1\r\nKeep-Alive: 1\r\nTe: trailers, x\r\nTrailer: a\r\nUpgrade: b\r\n\r\n")
	assert.Equal(t, http.Header{"Te": {"trailers"}}, got)
	exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\n\r\n")
	assert.Empty(t, got)
	exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: x\r\n\r\n")
	assert.Equal(t, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}, got)
}

func TestServerTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 60 * time.Millisecond
		readErr := make(chan error, 1)
		dial := serveInMemory(t, &message.ServerConfig{
			HeaderTimeout: limit, IdleTimeout: limit, BodyIdle: limit,
			Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				readErr <- err
				w.WriteHeader(http.StatusRequestTimeout)
			}),
		})
		ends := func(text, want string) {
			t.Helper()
			begin := time.Now()
			assert.Regexp(t, want, exchangeOn(t, dial(), text))
			assert.InDelta(t, limit, time.Since(begin), float64(2*sweep.Interval))
		}
		ends("", "^$")
		ends("GET / HTTP/1.1\r\nHo", "^HTTP/1.1 408 ")
		ends("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "^HTTP/1.1 408 ")
		require.NoError(t, <-readErr)
		ends("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /", "^HTTP/1.1 408 ")
		require.NoError(t, <-readErr)
		ends("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", "^HTTP/1.1 408 ")
		require.ErrorIs(t, <-readErr, message.ErrSlowBody)
	})
}

func TestServerBodyRate(t *testing.T) {
	for contentType, want := range map[string]error{"text/plain": message.ErrSlowBody, "application/grpc": io.ErrUnexpectedEOF} {
		t.Run(contentType, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				readErr := make(chan error, 1)
				conn := serveInMemory(t, &message.ServerConfig{
					BodyIdle: 100 * time.Millisecond, MinBodyRate: 10_000,
					Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
						_, err := io.Copy(io.Discard, r.Body)
						readErr <- err
					}),
				})()
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\nContent-Type: %s\r\n\r\n", contentType)
				stop := time.After(patience / 2)
				var got error
				for got == nil {
					select {
					case got = <-readErr:
					case <-stop:
						conn.Close()
						got = <-readErr
					case <-time.After(20 * time.Millisecond):
						io.WriteString(conn, "a")
					}
				}
				require.ErrorIs(t, got, want)
			})
		})
	}
}

func TestServerWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writeErr := make(chan error, 1)
		conn := serveInMemory(t, &message.ServerConfig{
			WriteTimeout: 100 * time.Millisecond,
			Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(w, zeros{})
				assert.Error(t, r.Context().Err())
				writeErr <- err
			}),
		})()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		begin := time.Now()
		select {
		case err := <-writeErr:
			require.Error(t, err)
		case <-time.After(patience):
			require.Fail(t, "the response is not cut off")
		}
		assert.InDelta(t, 100*time.Millisecond, time.Since(begin), float64(2*sweep.Interval))
	})
}

func TestServerDetectsClosedClient(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"no body":   "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"pipelined": "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /2",
		"body":      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			started, cause := make(chan struct{}), make(chan error, 1)
			s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				close(started)
				<-r.Context().Done()
				cause <- context.Cause(r.Context())
			})})
			conn := dial(t, s.addr)
			io.WriteString(conn, request)
			<-started
			s.readsAhead(t)
			conn.Close()
			require.ErrorIs(t, <-cause, errClientLeft)
		})
	}
}

// The read deadline of a handler applies to the request body, not to noticing that the client has left.
func TestServerDetectsClosedClientAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := make(chan error, 1)
		conn := serveInMemory(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second)))
			select {
			case <-r.Context().Done():
			case <-time.After(time.Hour):
			}
			cause <- context.Cause(r.Context())
		})})()
		begun := time.Now()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		time.Sleep(time.Minute)
		conn.Close()
		require.ErrorIs(t, <-cause, errClientLeft)
		assert.Equal(t, time.Minute, time.Since(begun))
	})
}

// While the request body is unread, only a failed write shows that the client has left.
func TestServerFailedWriteCancels(t *testing.T) {
	done := make(chan error, 1)
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		for limit := time.Now().Add(patience); r.Context().Err() == nil && time.Now().Before(limit); {
			io.WriteString(w, "event\n")
			w.(http.Flusher).Flush()
		}
		done <- r.Context().Err()
	})})
	conn := dial(t, s.addr)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
	_, err := conn.Read(make([]byte, 1))
	require.NoError(t, err)
	conn.Close()
	require.ErrorIs(t, <-done, context.Canceled)
}

// A Handler announces the protocols of an upgrade that it requires (RFC 9110, section 15.5.22).
func TestServerUpgradeRequired(t *testing.T) {
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusUpgradeRequired)
	})})
	got := exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	assert.Contains(t, got, "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
	assert.Contains(t, got, "\r\nConnection: close\r\n")
}

// A slow handler does not lose what the client has pipelined.
func TestServerReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serveInMemory(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			echo(w, r)
		})})()
		r := bufio.NewReader(conn)
		for i := range 4 {
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n")
			go io.WriteString(conn, strings.Repeat("x", 20000)+fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i))
			rsp, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			assert.Len(t, readAll(t, rsp), 20000)
			rsp, err = http.ReadResponse(r, nil)
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprintf("/%d", i), rsp.Header.Get("X-Uri"))
			readAll(t, rsp)
		}
	})
}

func TestServerIdleWithoutBuffer(t *testing.T) {
	t.Parallel()
	s := serve(t, &message.ServerConfig{Exchange: handledBy(http.HandlerFunc(echo))})
	conn := dial(t, s.addr)
	r := bufio.NewReader(conn)
	for range 2 {
		io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
		rsp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		readAll(t, rsp)
		c := s.all()[0]
		require.Eventually(t, func() bool { return c.slot.Phase() == phaseRest }, patience, time.Millisecond)
	}
}

func TestServerDrain(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(started)
			<-release
		}
	})})
	idle, busy := dial(t, s.addr), dial(t, s.addr)
	io.WriteString(idle, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	rsp, err := http.ReadResponse(bufio.NewReader(idle), nil)
	require.NoError(t, err)
	assert.False(t, rsp.Close)
	io.WriteString(busy, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
	<-started
	for _, c := range s.all() {
		c.CloseIdle()
	}
	got, err := io.ReadAll(idle)
	require.NoError(t, err)
	assert.Empty(t, got)
	close(release)
	got, err = io.ReadAll(busy)
	require.NoError(t, err)
	assert.Regexp(t, "(?s)^HTTP/1.1 200 OK.*Connection: close\r\n", string(got))
	require.Eventually(t, func() bool { return len(s.all()) == 0 }, patience, time.Millisecond)
	assert.Empty(t, s.errors())
}

func TestServerContextEnds(t *testing.T) {
	end := errors.New("end")
	started := make(chan struct{}, 2)
	causes := make(chan error, 2)
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		if r.URL.Path == "/write" {
			io.Copy(w, zeros{})
		}
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	})})
	for _, path := range []string{"/wait", "/write"} {
		conn := dial(t, s.addr)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
		<-started
	}
	dial(t, s.addr) // idle
	s.cancel(end)
	assert.Equal(t, end, <-causes)
	assert.Equal(t, end, <-causes)
}

func TestServerUnreadBody(t *testing.T) {
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/close" {
			r.Body.Close()
		}
		io.WriteString(w, "done")
	})})
	for _, path := range []string{"/close", "/"} {
		conn := dial(t, s.addr)
		r := bufio.NewReader(conn)
		for range 3 {
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", path)
			rsp, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			assert.False(t, rsp.Close)
			assert.Equal(t, "done", readAll(t, rsp))
			io.WriteString(conn, strings.Repeat("x", 100_000))
		}
		// A body that is too long to be dropped ends the connection.
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n", path)
		rsp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		assert.True(t, rsp.Close)
		assert.Equal(t, "done", readAll(t, rsp))
		_, err = r.ReadByte()
		assert.Equal(t, io.EOF, err)
	}
}

func TestServerPanics(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lockedWriter{&mu, &out}, nil))
	for name, cfg := range map[string]*message.ServerConfig{
		"exchange": {Exchange: func(*http.Request) (*http.Response, error) { panic("odd") }},
		"handler":  {Exchange: handled(func(http.ResponseWriter, *http.Request) { panic("odd") })},
		"body": {Exchange: func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(panicking{})}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out.Reset()
			cfg.Log = log
			s := serve(t, cfg)
			got := exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			assert.NotContains(t, got, "0\r\n\r\n")
			require.Eventually(t, func() bool { return len(s.errors()) == 1 }, patience, time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			assert.Contains(t, out.String(), "odd")
		})
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("odd") }

// A response does not have the invalid fields of its header, as in HTTP/2.
func TestServerInvalidResponseFields(t *testing.T) {
	header := http.Header{"A b": {"1"}, "Bad": {"a\r\nb", "2"}, "Good": {"3"}}
	s := serve(t, &message.ServerConfig{Exchange: func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 204, Header: header}, nil
	}})
	got := exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	parsed, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
	require.NoError(t, err)
	parsed.Header.Del("Date")
	assert.Equal(t, http.Header{"Bad": {"2"}, "Good": {"3"}}, parsed.Header)
}

func TestServerAbortedResponses(t *testing.T) {
	for name, rsp := range map[string]*http.Response{
		"short":  {StatusCode: 200, ContentLength: 5, Body: io.NopCloser(strings.NewReader("abc"))},
		"long":   {StatusCode: 200, ContentLength: 2, Body: io.NopCloser(strings.NewReader("abc"))},
		"error":  {StatusCode: 200, ContentLength: -1, Body: io.NopCloser(io.MultiReader(strings.NewReader("abc"), failing{}))},
		"tunnel": {StatusCode: 101, Body: io.NopCloser(strings.NewReader("abc"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &message.ServerConfig{Exchange: func(*http.Request) (*http.Response, error) { return rsp, nil }})
			got := exchangeRaw(t, s.addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			parsed, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
			if err == nil {
				_, err = io.ReadAll(parsed.Body)
			}
			assert.Error(t, err, "%q", got)
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("fails") }

func TestServerHijack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := serveInMemory(t, &message.ServerConfig{IdleTimeout: 50 * time.Millisecond, HeaderTimeout: 50 * time.Millisecond,
			Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(50 * time.Millisecond) // a reader ahead is running
				conn, rw, err := http.NewResponseController(w).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				go func() {
					defer conn.Close()
					line, err := rw.ReadString('\n')
					assert.NoError(t, err)
					time.Sleep(time.Second)
					io.WriteString(conn, line)
				}()
				io.WriteString(conn, "HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			})})
		got := exchangeOn(t, dial(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello\n")
		assert.Equal(t, "HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello\n", got)
	})
}

func TestServerDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serveInMemory(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			if r.ContentLength > 0 {
				assert.NoError(t, rc.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
				_, err := io.ReadAll(r.Body)
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
				return
			}
			assert.NoError(t, rc.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
			assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(time.Hour)))
		})})()
		r := bufio.NewReader(conn)
		for range 2 {
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			_, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			time.Sleep(time.Second) // the deadline does not apply to the next request
		}
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
		_, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
	})
}

// A pipe has neither addresses of sockets nor half-closing.
func TestServerPipe(t *testing.T) {
	s := serve(t, &message.ServerConfig{})
	here, there := net.Pipe()
	cfg := *s.cfg
	cfg.Exchange = handledBy(http.HandlerFunc(echo))
	done := make(chan error, 1)
	go func() { done <- NewServerConn(t.Context(), there, &cfg).Serve() }()
	p := newPool(t, "")
	p.dial = func(context.Context) (net.Conn, error) { return here, nil }
	for range 3 {
		req, err := http.NewRequest(http.MethodPost, "http://a/", strings.NewReader("hello"))
		require.NoError(t, err)
		rsp, err := p.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, "hello", readAll(t, rsp))
	}
	p.close()
	require.NoError(t, <-done)
}

// A goroutine of a handler that still reads the body is stopped, and takes nothing
// of the next request.
func TestServerAbandonedReader(t *testing.T) {
	ended := make(chan error, 10)
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		started := make(chan struct{})
		go func() {
			close(started)
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		}()
		<-started
		time.Sleep(time.Millisecond)
	})})
	conn := dial(t, s.addr)
	r := bufio.NewReader(conn)
	for _, framing := range []string{"Content-Length: 10\r\n\r\n01234", "Transfer-Encoding: chunked\r\n\r\na\r\n01234"} {
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\n"+framing)
		rsp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		readAll(t, rsp)
		require.Equal(t, http.ErrBodyReadAfterClose, <-ended)
		io.WriteString(conn, "56789")
		if strings.Contains(framing, "chunked") {
			io.WriteString(conn, "\r\n0\r\n\r\n")
		}
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		rsp, err = http.ReadResponse(r, nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, rsp.StatusCode)
		readAll(t, rsp)
	}
}

// A handler that ends its goroutine ends the connection, and nothing else is left.
func TestServerGoexit(t *testing.T) {
	for _, body := range []string{"", "Content-Length: 5\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			conn, there := net.Pipe()
			cfg := &message.ServerConfig{Log: slog.New(slog.DiscardHandler), Sweeper: new(sweep.Sweeper)}
			cfg.Exchange = handled(func(http.ResponseWriter, *http.Request) {
				time.Sleep(time.Second) // reading ahead begins
				runtime.Goexit()
			})
			go func() { _ = NewServerConn(t.Context(), there, cfg).Serve() }()
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\n"+body+"\r\n")
			_, err := conn.Read(make([]byte, 1))
			assert.Equal(t, io.EOF, err)
		})
	}
}

// A hijacked connection that its handler does not close ends with the context.
func TestServerHijackedAndLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, there := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error)
		cfg := &message.ServerConfig{Sweeper: new(sweep.Sweeper), Exchange: handled(func(w http.ResponseWriter, _ *http.Request) {
			_, _, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
		})}
		go func() { served <- NewServerConn(ctx, there, cfg).Serve() }()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-served, context.Canceled)
		_, err := conn.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)
	})
}

// The upstream request is canceled when the client leaves.
func TestProxyDetectsClosedClient(t *testing.T) {
	started, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	s, p := proxy(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		started <- struct{}{}
		io.Copy(io.Discard, conn)
		gone <- struct{}{}
	}))
	conn := dial(t, s.addr)
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-started
	s.readsAhead(t)
	conn.Close()
	<-gone
	require.Eventually(t, func() bool {
		_, released, idle := p.counts()
		return released == 1 && idle == 0
	}, patience, time.Millisecond)
}

// What other proxies accept, and can be read in only one way, is served.
func TestServerLenient(t *testing.T) {
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI)
	})})
	for name, request := range map[string]string{
		"empty line first":            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"many empty lines first":      strings.Repeat("\r\n\n", 50) + "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"bare LF everywhere":          "GET / HTTP/1.0\nA: b\n\n",
		"bare LF at the end":          "GET / HTTP/1.1\r\nHost: a\r\n\n",
		"version 1.9":                 "GET / HTTP/1.9\r\nHost: a\r\n\r\n",
		"UTF-8 in query":              "GET /?\u00e9 HTTP/1.1\r\nHost: a\r\n\r\n",
		"UTF-8 in Host":               "GET / HTTP/1.1\r\nHost: \u00e9\r\n\r\n",
		"length with many zeros":      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + strings.Repeat("0", 30) + "1\r\n\r\na",
		"two spaces":                  "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"version 1.2":                 "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
		"bytes above ASCII in target": "GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
		"bare LF in request line":     "GET / HTTP/1.1\nHost: a\r\n\r\n",
		"bare LF after field":         "GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n",
		"other expectation":           "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			require.NoError(t, err)
			defer conn.Close()
			_, _ = io.WriteString(conn, request)
			rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, rsp.StatusCode)
			assert.Equal(t, "HTTP/1.", rsp.Proto[:7])
		})
	}
}

// Empty lines between requests are dropped, also on a connection that rests.
func TestServerEmptyLinesBetweenRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serveInMemory(t, &message.ServerConfig{
			HeaderTimeout: time.Second,
			Exchange:      handled(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }),
		})()
		defer conn.Close()
		r := bufio.NewReader(conn)
		for range 3 {
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na\r\n\r\n\n")
			rsp, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, rsp.StatusCode)
			time.Sleep(5 * time.Second)
			_, _ = io.WriteString(conn, "\r\n")
			time.Sleep(5 * time.Second)
		}
	})
}
