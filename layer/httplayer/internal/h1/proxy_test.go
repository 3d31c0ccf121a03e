package h1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// hops are the ways in which the engine is between a client and a net/http server.
func hops(t *testing.T, h http.HandlerFunc) map[string]string {
	up := upstream(t, h)
	exchange, p := proxy(t, up)
	target, err := url.Parse("http://" + up)
	require.NoError(t, err)
	reverse := httputil.NewSingleHostReverseProxy(target)
	reverse.Transport = p
	reverse.FlushInterval = -1
	return map[string]string{
		"exchange":     exchange.addr,
		"ReverseProxy": serve(t, &message.ServerConfig{Exchange: handledBy(reverse)}).addr,
		"handler":      serve(t, &message.ServerConfig{Exchange: handledBy(h)}).addr,
	}
}

func TestProxyMessages(t *testing.T) {
	large := strings.Repeat("0123456789", 100_000)
	for hop, addr := range hops(t, echo) {
		t.Run(hop, func(t *testing.T) {
			c := client(t)
			for name, tt := range map[string]struct {
				method, body string
				chunked      bool
			}{
				"GET":             {method: http.MethodGet},
				"HEAD":            {method: http.MethodHead},
				"small POST":      {method: http.MethodPost, body: "hello"},
				"empty POST":      {method: http.MethodPost},
				"large POST":      {method: http.MethodPost, body: large},
				"small chunked":   {method: http.MethodPut, body: "hello", chunked: true},
				"large chunked":   {method: http.MethodPut, body: large, chunked: true},
				"8 KiB":           {method: http.MethodPut, body: large[:8<<10]},
				"64 KiB chunked":  {method: http.MethodPut, body: large[:64<<10], chunked: true},
				"empty chunked":   {method: http.MethodPut, chunked: true},
				"DELETE and body": {method: http.MethodDelete, body: "x"},
			} {
				t.Run(name, func(t *testing.T) {
					var body io.Reader = strings.NewReader(tt.body)
					if tt.chunked {
						body = io.MultiReader(body)
					}
					req, err := http.NewRequest(tt.method, "http://"+addr+"/a%20b?c=d&e", body)
					require.NoError(t, err)
					req.Header["X-Two"] = []string{"1", "2"}
					rsp, err := c.Do(req)
					require.NoError(t, err)
					assert.Equal(t, http.StatusOK, rsp.StatusCode)
					assert.Equal(t, tt.body == readAll(t, rsp), tt.method != http.MethodHead || tt.body == "")
					assert.Equal(t, []string{"1", "2"}, rsp.Header["X-Two"])
					assert.Equal(t, tt.method, rsp.Header.Get("X-Method"))
					assert.Equal(t, "/a%20b?c=d&e", rsp.Header.Get("X-Uri"))
					assert.Equal(t, addr, rsp.Header.Get("X-Host"))
					assert.NotEmpty(t, rsp.Header.Get("Date"))
				})
			}
		})
	}
}

func TestProxyReusesConnections(t *testing.T) {
	s, p := proxy(t, upstream(t, echo))
	c := client(t)
	for i := range 20 {
		rsp, err := c.Post("http://"+s.addr, "text/plain", io.MultiReader(strings.NewReader(strings.Repeat("x", i*1000))))
		require.NoError(t, err)
		assert.Len(t, readAll(t, rsp), i*1000)
	}
	dials, released, idle := p.counts()
	assert.Equal(t, []int{1, 20, 1}, []int{dials, released, idle})
	assert.Len(t, s.all(), 1)
}

func TestProxyPipelining(t *testing.T) {
	s, _ := proxy(t, upstream(t, echo))
	var in strings.Builder
	for i := range 50 {
		fmt.Fprintf(&in, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n%03d", i, i)
	}
	in.WriteString("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	r := bufio.NewReader(strings.NewReader(exchangeRaw(t, s.addr, in.String())))
	for i := range 50 {
		rsp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("%03d", i), readAll(t, rsp))
	}
	rsp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, "/last", rsp.Header.Get("X-Uri"))
	assert.True(t, rsp.Close)
}

func TestProxyTrailers(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		w.Header().Set("Trailer", "Announced")
		w.Header().Set("X-Announced", strings.Join(r.Trailer["Announced"], ","))
		w.WriteHeader(http.StatusOK)
		io.WriteString(w, "body")
		w.Header().Set("Announced", "1")
		w.Header().Set(http.TrailerPrefix+"Late", "2")
	}
	for hop, addr := range hops(t, h) {
		t.Run(hop, func(t *testing.T) {
			req, err := http.NewRequest(http.MethodPost, "http://"+addr, strings.NewReader("x"))
			require.NoError(t, err)
			req.ContentLength = -1
			req.Trailer = http.Header{"Announced": {"a"}}
			rsp, err := client(t).Do(req)
			require.NoError(t, err)
			assert.Contains(t, rsp.Trailer, "Announced")
			assert.Equal(t, "body", readAll(t, rsp))
			if hop != "ReverseProxy" { // it clones the request before its trailers arrive
				assert.Equal(t, "a", rsp.Header.Get("X-Announced"))
			}
			assert.Equal(t, http.Header{"Announced": {"1"}, "Late": {"2"}}, rsp.Trailer)
		})
	}
}

func TestProxyInforms(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.WriteHeader(http.StatusAccepted)
	}
	for hop, addr := range hops(t, h) {
		t.Run(hop, func(t *testing.T) {
			var got []string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
					got = append(got, fmt.Sprint(code, header["Link"]))
					return nil
				},
			})
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
			require.NoError(t, err)
			rsp, err := client(t).Do(req)
			require.NoError(t, err)
			assert.Empty(t, readAll(t, rsp))
			assert.Equal(t, http.StatusAccepted, rsp.StatusCode)
			assert.Empty(t, rsp.Header["Link"])
			assert.Equal(t, []string{"103 [</a>]"}, got)
		})
	}
}

func TestProxyExpect(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		echo(w, r)
	}
	for hop, addr := range hops(t, h) {
		t.Run(hop, func(t *testing.T) {
			c := client(t)
			for path, want := range map[string]string{"/no": "", "/yes": "hello"} {
				continued := 0
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued++ }})
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader("hello"))
				require.NoError(t, err)
				req.Header.Set("Expect", "100-continue")
				rsp, err := c.Do(req)
				require.NoError(t, err)
				assert.Equal(t, want, readAll(t, rsp))
				assert.Equal(t, want != "", continued == 1)
			}
		})
	}
}

func TestProxyStreams(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		assert.NoError(t, rc.Flush())
		b := make([]byte, 10)
		for {
			n, err := r.Body.Read(b)
			w.Write(bytes.ToUpper(b[:n]))
			rc.Flush()
			if err != nil {
				return
			}
		}
	}
	for hop, addr := range hops(t, h) {
		t.Run(hop, func(t *testing.T) {
			r, w := io.Pipe()
			req, err := http.NewRequest(http.MethodPost, "http://"+addr, r)
			require.NoError(t, err)
			rsp, err := client(t).Do(req)
			require.NoError(t, err)
			defer rsp.Body.Close()
			for _, word := range []string{"one", "two", "three"} {
				io.WriteString(w, word)
				got := make([]byte, len(word))
				_, err := io.ReadFull(rsp.Body, got)
				require.NoError(t, err)
				assert.Equal(t, strings.ToUpper(word), string(got))
			}
			w.Close()
			assert.Empty(t, readAll(t, rsp))
		})
	}
}

func TestProxyUpgrade(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "Upgrade", r.Header.Get("Connection"))
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi ")
		rw.Flush()
		io.Copy(rw, rw)
		rw.WriteString(" bye")
		rw.Flush()
	}
	for hop, addr := range hops(t, h) {
		if hop == "ReverseProxy" {
			continue // it has no half-closed tunnels
		}
		t.Run(hop, func(t *testing.T) {
			conn := dial(t, addr)
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly ")
			r := bufio.NewReader(conn)
			rsp, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
			assert.Equal(t, "echo", rsp.Header.Get("Upgrade"))
			io.WriteString(conn, "late")
			require.NoError(t, message.CloseWrite(conn))
			got, err := io.ReadAll(r)
			require.NoError(t, err)
			assert.Equal(t, "hi early late bye", string(got))
		})
	}
}

func TestProxyConnect(t *testing.T) {
	s, p := proxy(t, upstream(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "a.example:443", r.Host)
		if r.Header.Get("Refuse") != "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusOK)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		io.Copy(rw, rw)
		rw.Flush()
	}))
	conn := dial(t, s.addr)
	io.WriteString(conn, "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\nhello")
	require.NoError(t, message.CloseWrite(conn))
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Regexp(t, "(?s)^HTTP/1.1 200 OK\r\n.*\r\n\r\nhello$", string(got))
	assert.NotContains(t, string(got), "Transfer-Encoding")

	got2 := exchangeRaw(t, s.addr, "CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\nRefuse: 1\r\nConnection: close\r\n\r\n")
	assert.Regexp(t, "^HTTP/1.1 403 Forbidden\r\n", got2)
	require.Eventually(t, func() bool {
		_, released, _ := p.counts()
		return released == 2
	}, patience, time.Millisecond)
}

func TestProxyOldClients(t *testing.T) {
	s, _ := proxy(t, upstream(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "HTTP/1.0", r.Proto)
		w.Write([]byte("hello"))
	}))
	got := exchangeRaw(t, s.addr, "GET / HTTP/1.0\r\n\r\n")
	assert.Regexp(t, "(?s)^HTTP/1.0 200 OK\r\n.*Connection: close\r\n\r\nhello$", got)
	got = exchangeRaw(t, s.addr, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
	assert.Regexp(t, "(?s)^HTTP/1.0 200 OK\r\n.*Connection: keep-alive\r\n\r\nhelloHTTP/1.0 200 .*hello$", got)
}

func TestProxyNoBodyStatuses(t *testing.T) {
	s, p := proxy(t, upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/304" {
			w.Header().Set("ETag", "x")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	c := client(t)
	for range 2 {
		for path, status := range map[string]int{"/304": 304, "/204": 204} {
			rsp, err := c.Get("http://" + s.addr + path)
			require.NoError(t, err)
			assert.Equal(t, status, rsp.StatusCode)
			assert.Empty(t, rsp.Header["Content-Length"])
			assert.Empty(t, rsp.Header["Transfer-Encoding"])
			assert.Empty(t, readAll(t, rsp))
		}
	}
	dials, _, _ := p.counts()
	assert.Equal(t, 1, dials)
}

func TestProxyConcurrently(t *testing.T) {
	s, _ := proxy(t, upstream(t, echo))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			c := client(t)
			for i := range 50 {
				want := strings.Repeat(string(rune('a'+g)), i*100)
				rsp, err := c.Post("http://"+s.addr, "text/plain", strings.NewReader(want))
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, want, readAll(t, rsp))
			}
		})
	}
	wg.Wait()
}

// A net/http server that sees an early response and an unread body.
func TestProxyEarlyResponse(t *testing.T) {
	t.Parallel()
	for hop, addr := range hops(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	}) {
		t.Run(hop, func(t *testing.T) {
			rsp, err := client(t).Post("http://"+addr, "text/plain", io.LimitReader(zeros{}, 64<<20))
			require.NoError(t, err)
			assert.Equal(t, http.StatusRequestEntityTooLarge, rsp.StatusCode)
			assert.Equal(t, "too large\n", readAll(t, rsp))
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
