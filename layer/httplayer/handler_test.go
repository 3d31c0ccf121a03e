package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// hops runs a test once for each way of going through a proxy: the protocol
// of the client, and that of the endpoint.
func hops(t *testing.T, h http.Handler, test func(t *testing.T, c *http.Client, base string)) {
	up := serve(t, h)
	for _, hop := range []struct {
		name  string
		two   bool
		fixed []EndpointOption
	}{
		{"http1 to http1", false, nil},
		{"h2 to h2", true, nil},
		{"http1 to h2", false, []EndpointOption{WithHTTP2()}},
		{"h2 to http1", true, []EndpointOption{WithHTTP1()}},
	} {
		t.Run(hop.name, func(t *testing.T) {
			proxy := serve(t, Handler(endpoint(t, up, hop.fixed...)))
			test(t, client(t, hop.two), "http://"+proxy)
		})
	}
}

func TestHandlerResponses(t *testing.T) {
	hops(t, http.HandlerFunc(shapes), func(t *testing.T, c *http.Client, base string) {
		for _, tt := range []struct {
			method, path, body string
			status             int
			header             string // a field and its value that must be there
			trailer            string
		}{
			{"GET", "/length", "hello", 200, "Content-Length: 5", ""},
			{"HEAD", "/length", "", 200, "Content-Length: 5", ""},
			{"GET", "/chunks", "0,1,2,", 200, "", ""},
			{"GET", "/empty", "", 200, "Content-Length: 0", ""},
			{"POST", "/empty", "", 200, "Content-Length: 0", ""},
			{"DELETE", "/none", "", 204, "", ""},
			{"GET", "/same", "", 304, `Etag: "x"`, ""},
			{"GET", "/announced", "body", 200, "", "42"},
			{"GET", "/unannounced", "body", 200, "", "43"},
			{"GET", "/nowhere", "404 page not found\n", 404, "", ""},
		} {
			t.Run(tt.method+tt.path, func(t *testing.T) {
				rsp, err := c.Do(request(t, tt.method, base+tt.path, ""))
				require.NoError(t, err)
				assert.Equal(t, tt.status, rsp.StatusCode)
				if name, value, ok := strings.Cut(tt.header, ": "); ok {
					assert.Equal(t, value, rsp.Header.Get(name))
				}
				assert.Equal(t, tt.body, read(t, rsp))
				assert.Equal(t, tt.trailer, rsp.Trailer.Get("Sum"))
				assert.NotContains(t, rsp.Header, "L5d-Proxy-Error")
			})
		}
	})
}

func TestHandlerBodies(t *testing.T) {
	// tests.md A16
	hops(t, http.HandlerFunc(shapes), func(t *testing.T, c *http.Client, base string) {
		for _, length := range []int64{5, -1} {
			req := request(t, "POST", base+"/echo", "hello")
			req.ContentLength = length
			rsp, err := c.Do(req)
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(length), rsp.Header.Get("Was-Length"))
			assert.Equal(t, "hello", read(t, rsp))
		}
	})
}

func TestHandlerRequestTrailer(t *testing.T) {
	hops(t, http.HandlerFunc(shapes), func(t *testing.T, c *http.Client, base string) {
		req := request(t, "POST", base+"/echo", "hello")
		req.ContentLength = -1
		req.Trailer = http.Header{"Sum": {"44"}}
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.Equal(t, "44", rsp.Trailer.Get("Sum"))
	})
}

func TestHandlerEarlyHints(t *testing.T) {
	hops(t, http.HandlerFunc(shapes), func(t *testing.T, c *http.Client, base string) {
		var hints []string
		req := request(t, "GET", base+"/early", "")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, h.Get("Link")))
				return nil
			},
		}))
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, "late", read(t, rsp))
		assert.Equal(t, []string{"103</a.css>; rel=preload"}, hints)
		assert.Empty(t, rsp.Header.Get("Link"))
	})
}

func TestHandlerExpectContinue(t *testing.T) {
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		pipe(w, r.Body)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		c.Transport.(*http.Transport).ExpectContinueTimeout = 1 << 40 // it must be asked for
		for path, want := range map[string]int{"/yes": 200, "/no": 417} {
			body := &asked{Reader: strings.NewReader("hello")}
			req := request(t, "PUT", base+path, "")
			req.Body, req.ContentLength = body, 5
			req.Header.Set("Expect", "100-continue")
			rsp, err := c.Do(req)
			require.NoError(t, err)
			assert.Equal(t, want, rsp.StatusCode)
			if got := read(t, rsp); want == 200 {
				assert.Equal(t, "hello", got)
			} else if rsp.ProtoMajor == 1 {
				assert.Zero(t, body.reads.Load(), "the upstream did not want it")
			}
		}
	})
}

// raw sends bytes to a proxy in front of an upstream that answers with what it
// received, and returns the response as bytes.
func raw(t *testing.T, answer string, opts ...EndpointOption) func(t *testing.T, sent string) (received, answered string) {
	t.Helper()
	got := make(chan string, 1)
	up := rawServer(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		var head strings.Builder
		length := 0
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Sscanf(strings.ToLower(line), "content-length: %d", &length)
			head.WriteString(line)
			if line == "\r\n" {
				break
			}
		}
		pipe(&head, io.LimitReader(in, int64(length)))
		got <- head.String()
		say(conn, answer)
	})
	proxy := serve(t, Handler(endpoint(t, up, opts...)), func(s *http.Server) { s.DisableGeneralOptionsHandler = true })
	return func(t *testing.T, sent string) (received, answered string) {
		t.Helper()
		conn, err := net.Dial("tcp", proxy)
		require.NoError(t, err)
		defer conn.Close()
		say(conn, strings.ReplaceAll(sent, "\n", "\r\n"))
		var answer strings.Builder
		method, _, _ := strings.Cut(sent, " ")
		rsp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &answer)), &http.Request{Method: method})
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
		select {
		case received = <-got:
		default:
		}
		return strings.ReplaceAll(received, "\r\n", "\n"), strings.ReplaceAll(answer.String(), "\r\n", "\n")
	}
}

const plainOK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: x\r\nConnection: close\r\n\r\nok"

// head splits a message into its first line and its fields, sorted.
func head(message string) (first string, fields []string) {
	block, _, _ := strings.Cut(message, "\n\n")
	lines := strings.Split(block, "\n")
	fields = lines[1:]
	slices.Sort(fields)
	return lines[0], fields
}

func TestHandlerRequestHeaders(t *testing.T) {
	send := raw(t, plainOK)
	for name, tt := range map[string]struct {
		sent, first string
		fields      []string
	}{
		"nothing is added": { // tests.md A17
			"GET /a?b=c;d&%zz HTTP/1.1\nHost: web.default\n\n",
			"GET /a?b=c;d&%zz HTTP/1.1", []string{"Host: web.default"},
		},
		"a path stays as it is written": {
			"GET //a%2Fb/../c%20d/ HTTP/1.1\nHost: web\n\n",
			"GET //a%2Fb/../c%20d/ HTTP/1.1", []string{"Host: web"},
		},
		"hop-by-hop fields are dropped": { // tests.md A8
			"GET / HTTP/1.1\nHost: web\nConnection: X-Mine, keep-alive\nX-Mine: 1\nKeep-Alive: 1\nProxy-Connection: x\nX-Yours: 2\n\n",
			"GET / HTTP/1.1", []string{"Host: web", "X-Yours: 2"},
		},
		"forwarded fields stay": { // proxy.md §6: nothing added; nothing of the client's taken away
			"GET / HTTP/1.1\nHost: web\nX-Forwarded-For: 1.2.3.4\nForwarded: for=1.2.3.4\nX-Forwarded-Proto: https\nX-Forwarded-Host: h\n\n",
			"GET / HTTP/1.1", []string{"Forwarded: for=1.2.3.4", "Host: web", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: h", "X-Forwarded-Proto: https"},
		},
		"unless they are hop-by-hop": {
			"GET / HTTP/1.1\nHost: web\nConnection: x-forwarded-for\nX-Forwarded-For: 1.2.3.4\n\n",
			"GET / HTTP/1.1", []string{"Host: web"},
		},
		"an absolute target": { // tests.md A10
			"GET http://web.default/a HTTP/1.1\nHost: other\n\n",
			"GET http://web.default/a HTTP/1.1", []string{"Host: web.default"},
		},
		"HTTP/1.0": { // tests.md A9
			"GET /a HTTP/1.0\nHost: web\n\n",
			"GET /a HTTP/1.0", []string{"Host: web"},
		},
		"a length of 0": { // tests.md A18
			"DELETE /a HTTP/1.1\nHost: web\nContent-Length: 0\n\n",
			"DELETE /a HTTP/1.1", []string{"Content-Length: 0", "Host: web"},
		},
		"h2c is not offered on": { // tests.md A13
			"GET /a HTTP/1.1\nHost: web\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n",
			"GET /a HTTP/1.1", []string{"Host: web"},
		},
		"h2c in a list is not offered on": {
			"GET /a HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: chat, h2c\n\n",
			"GET /a HTTP/1.1", []string{"Host: web"},
		},
		"other upgrades are": {
			"GET /a HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: chat\n\n",
			"GET /a HTTP/1.1", []string{"Connection: Upgrade", "Host: web", "Upgrade: chat"},
		},
		"trailers are asked for": {
			"GET /a HTTP/1.1\nHost: web\nTE: trailers, deflate\n\n",
			"GET /a HTTP/1.1", []string{"Connection: TE", "Host: web", "Te: trailers"},
		},
		"OPTIONS *": {
			"OPTIONS * HTTP/1.1\nHost: web\n\n",
			"OPTIONS * HTTP/1.1", []string{"Host: web"},
		},
		"a method of one's own": {
			"PURGE /a HTTP/1.1\nHost: web\nUser-Agent: me\nAccept-Encoding: br\n\n",
			"PURGE /a HTTP/1.1", []string{"Accept-Encoding: br", "Host: web", "User-Agent: me"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			received, answered := send(t, tt.sent)
			first, fields := head(received)
			assert.Equal(t, tt.first, first)
			assert.Equal(t, tt.fields, fields)
			assert.True(t, strings.HasSuffix(answered, "\n\nok"), answered)
		})
	}
}

func TestHandlerStatusLine(t *testing.T) {
	send := raw(t, plainOK)
	_, answered := send(t, "GET / HTTP/1.0\nHost: web\n\n")
	assert.True(t, strings.HasPrefix(answered, "HTTP/1.0 200 OK\n"), answered)
	_, answered = send(t, "GET / HTTP/1.1\nHost: web\n\n")
	assert.True(t, strings.HasPrefix(answered, "HTTP/1.1 200 OK\n"), answered)
}

func TestHandlerResponseHeaders(t *testing.T) {
	for name, tt := range map[string]struct {
		answer, method string
		fields         []string
		body           string
	}{
		"hop-by-hop fields are dropped": {
			"HTTP/1.1 200 OK\nConnection: X-Mine\nX-Mine: 1\nKeep-Alive: 1\nX-Yours: 2\nContent-Length: 2\nDate: x\n\nok", "GET",
			[]string{"Content-Length: 2", "Date: x", "X-Yours: 2"}, "ok",
		},
		"the end of the connection is the end of the body": { // tests.md A21
			"HTTP/1.1 200 OK\nDate: x\nContent-Type: a/b\n\nto the end", "GET",
			[]string{"Content-Type: a/b", "Date: x", "Transfer-Encoding: chunked"}, "a\nto the end\n0",
		},
		"HEAD": { // tests.md A20
			"HTTP/1.1 200 OK\nContent-Length: 500\nDate: x\n\n", "HEAD",
			[]string{"Content-Length: 500", "Date: x"}, "",
		},
		"204": { // tests.md A19
			"HTTP/1.1 204 No Content\nDate: x\n\n", "GET",
			[]string{"Date: x"}, "",
		},
		"304": {
			"HTTP/1.1 304 Not Modified\nEtag: \"x\"\nDate: x\n\n", "GET",
			[]string{"Date: x", "Etag: \"x\""}, "",
		},
		"a length of 0": { // tests.md A18
			"HTTP/1.1 200 OK\nContent-Length: 0\nDate: x\n\n", "GET",
			[]string{"Content-Length: 0", "Date: x"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			send := raw(t, strings.ReplaceAll(tt.answer, "\n", "\r\n"))
			_, answered := send(t, tt.method+" / HTTP/1.1\nHost: web\n\n")
			_, fields := head(answered)
			assert.Equal(t, tt.fields, fields)
			_, body, _ := strings.Cut(answered, "\n\n")
			assert.Equal(t, tt.body, strings.TrimSuffix(body, "\n\n"))
		})
	}
}

func TestHandlerKeepsConnection(t *testing.T) {
	// tests.md A24
	var c counted
	up := serve(t, http.HandlerFunc(shapes))
	proxy := serve(t, Handler(endpoint(t, up, WithDialContext(c.DialContext))))
	cl := client(t, false)
	for range 10 {
		rsp, err := cl.Do(request(t, "GET", "http://"+proxy+"/length", ""))
		require.NoError(t, err)
		read(t, rsp)
	}
	assert.EqualValues(t, 1, c.dials.Load())
}

func TestHandlerAnyService(t *testing.T) {
	svc := NewStack().Service(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusTeapot, Header: http.Header{"X": {r.URL.Host}}}, nil
	}))
	proxy := serve(t, Handler(svc))
	rsp, err := client(t, false).Do(request(t, "GET", "http://"+proxy+"/", ""))
	require.NoError(t, err)
	assert.Equal(t, http.StatusTeapot, rsp.StatusCode)
	assert.Equal(t, proxy, rsp.Header.Get("X"))
	assert.Empty(t, read(t, rsp))
}

func TestHandlerContentType(t *testing.T) {
	svc := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, ContentLength: 6, Body: io.NopCloser(strings.NewReader("<html>"))}, nil
	})
	rec := httptest.NewRecorder()
	Handler(svc).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	values, ok := rec.Header()["Content-Type"]
	assert.True(t, ok, "a server guesses without a Content-Type")
	assert.Empty(t, values)
}

// hint has the transport of a request say 103, as one that got it does.
func hint(ctx context.Context) {
	_ = message.Inform(ctx, http.StatusEarlyHints, http.Header{"Link": {"</a>"}})
}

// Headers that were set before a 103 are sent with the final response, and not with the
// 103.
func TestInformationalKeepsHeader(t *testing.T) {
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		hint(ctx)
		hint(ctx)
		return HTTP{}.NewResponse(r, layer.DirectResponse{Status: 200, Message: "hello", Header: []layer.HeaderField{{Name: "X-Both", Value: "svc"}}}), nil
	}))
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		w.Header().Set("X-Both", "outer")
		h.ServeHTTP(w, r)
	})
	bothWays(t, outer, func(t *testing.T, c *http.Client, base string) {
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				hints++
				assert.Equal(t, http.StatusEarlyHints, code)
				assert.Equal(t, textproto.MIMEHeader{"Link": {"</a>"}}, header)
				return nil
			},
		})
		rsp, err := c.Do(request(t, "GET", base, "").WithContext(ctx))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.Equal(t, 2, hints)
		assert.Equal(t, "1", rsp.Header.Get("X-Outer"))
		assert.Equal(t, []string{"outer", "svc"}, rsp.Header["X-Both"])
		assert.Empty(t, rsp.Header["Link"])
	})
}

// While a server drains, its responses have Connection: close, also after a 103. HTTP/1.0 clients
// receive no 103.
func TestInformationalHTTP1Clients(t *testing.T) {
	up := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		say(w, "hello")
	})))
	front := servingBy(t, Handler(up))
	ask := func(head string) string {
		c := wireTo(t, front.addr)
		say(c, head+"\r\n\r\n")
		all, err := io.ReadAll(c.in)
		require.NoError(t, err)
		return string(all)
	}
	ten := ask("GET / HTTP/1.0\r\nHost: web")
	assert.True(t, strings.HasPrefix(ten, "HTTP/1.0 200 OK"), ten)
	assert.True(t, strings.HasSuffix(ten, "hello"), ten)
	front.Server.drain()
	all := ask("GET / HTTP/1.1\r\nHost: web") // it would not end
	assert.True(t, strings.HasPrefix(all, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK"), all)
	assert.Contains(t, all, "Connection: close\r\n")
}

// An abandoned attempt may receive a 103 while the response of another attempt is being
// sent. The 103 is dropped.
func TestInformationalAbandonedAttempt(t *testing.T) {
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		lost := make(chan struct{})
		go func() {
			for range 100 {
				hint(ctx)
			}
			close(lost)
		}()
		context.AfterFunc(ctx, func() { <-lost })
		rsp := HTTP{}.NewResponse(r, layer.DirectResponse{Status: 200})
		return rsp, nil
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		for range 30 {
			rsp, err := c.Get(base)
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, http.StatusOK, rsp.StatusCode)
			assert.Empty(t, rsp.Header["Link"])
		}
	})
}

// countedWriter counts the headers that are written.
type countedWriter struct {
	http.ResponseWriter
	heads int
}

func (w *countedWriter) WriteHeader(status int) {
	w.heads++
	w.ResponseWriter.WriteHeader(status)
}

// A 103 after a panic of the handler is not sent.
func TestInformationalAfterPanic(t *testing.T) {
	var late context.Context
	h := Handler(serviceFunc(func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		late = ctx
		panic(http.ErrAbortHandler)
	}))
	w := &countedWriter{ResponseWriter: httptest.NewRecorder()}
	require.Panics(t, func() { h.ServeHTTP(w, httptest.NewRequest("GET", "http://web/", http.NoBody)) })
	hint(late)
	assert.Zero(t, w.heads)
}

// An invalid status is a failure of the endpoint.
func TestHandlerInvalidUpstreamStatus(t *testing.T) {
	for _, status := range []string{"000", "099"} {
		addr := rawServer(t, func(_ int, c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				sayf(c, "HTTP/1.1 %s Odd\r\nContent-Length: 2\r\n\r\nok", status)
			}
		})
		front := servingBy(t, Handler(endpoint(t, addr), WithConnect()))
		for _, head := range []string{"GET / HTTP/1.1\r\nHost: web\r\n\r\n", "CONNECT web:443 HTTP/1.1\r\nHost: web:443\r\n\r\n"} {
			c := wireTo(t, front.addr)
			say(c, head)
			rsp, err := http.ReadResponse(c.in, nil)
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		}
	}
	closed := make(chan bool, 1)
	h := Handler(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 150, Header: http.Header{}, Body: onClose(func() { closed <- true })}, nil
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://web/", http.NoBody))
	assert.Equal(t, http.StatusBadGateway, w.Code)
	assert.Len(t, closed, 1)
}

// onClose is an empty body.
type onClose func()

func (onClose) Read([]byte) (int, error) { return 0, io.EOF }

func (c onClose) Close() error {
	c()
	return nil
}

func TestHandlerFlushes(t *testing.T) {
	// Each piece arrives before the next one is written.
	next := make(chan struct{})
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "6")
		}
		w.WriteHeader(http.StatusOK)
		flush(w)
		for i := range 3 {
			<-next
			sayf(w, "%d,", i)
			flush(w)
		}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/length", "/chunks"} {
			rsp, err := c.Do(request(t, "GET", base+path, ""))
			require.NoError(t, err, "the header is flushed, too")
			for i := range 3 {
				next <- struct{}{}
				piece := make([]byte, 2)
				_, err := io.ReadFull(rsp.Body, piece)
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprintf("%d,", i), string(piece))
			}
			assert.Empty(t, read(t, rsp))
		}
	})
}

func TestHandlerFullDuplex(t *testing.T) {
	// The client waits for the reply to each message before it sends the next.
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fullDuplex(w)
		flush(w)
		words := bufio.NewScanner(r.Body)
		for words.Scan() {
			sayf(w, "<%s>\n", words.Text())
			flush(w)
		}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		in, out := io.Pipe()
		req := request(t, "POST", base+"/", "")
		req.Body = in
		rsp, err := c.Do(req)
		require.NoError(t, err)
		answers := bufio.NewScanner(rsp.Body)
		for i := range 5 {
			sayf(out, "%d\n", i)
			require.True(t, answers.Scan())
			assert.Equal(t, fmt.Sprintf("<%d>", i), answers.Text())
		}
		out.Close()
		assert.False(t, answers.Scan())
		require.NoError(t, rsp.Body.Close())
	})
}

func TestHandlerLargeBodiesFullDuplex(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fullDuplex(w)
		pipe(w, r.Body)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, length := range []int64{size, -1} {
			req := request(t, "POST", base+"/", "")
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(data)), length
			rsp, err := c.Do(req)
			require.NoError(t, err)
			sum := sha256.New()
			n, err := io.Copy(sum, rsp.Body)
			require.NoError(t, err)
			assert.EqualValues(t, size, n)
			want := sha256.Sum256(data)
			assert.Equal(t, want[:], sum.Sum(nil))
			rsp.Body.Close()
		}
	})
}

func TestHandlerCancelsUpstream(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			say(w, "half")
			flush(w)
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/head", "/body"} {
			ctx, cancel := context.WithCancel(t.Context())
			req := request(t, "GET", base+path, "").WithContext(ctx)
			errs := make(chan error, 1)
			go func() {
				rsp, err := c.Do(req)
				if err == nil {
					_, err = io.ReadAll(rsp.Body)
					rsp.Body.Close()
				}
				errs <- err
			}()
			<-arrived
			time.Sleep(time.Second) // earlier, it would be a half-closed client
			cancel()
			<-gone
			assert.ErrorIs(t, <-errs, context.Canceled)
		}
	})
}

func TestHandlerAbortsIncompleteResponse(t *testing.T) {
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "100")
		}
		say(w, "half")
		flush(w)
		panic(http.ErrAbortHandler)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/length", "/chunks"} {
			rsp, err := c.Do(request(t, "GET", base+path, ""))
			if err != nil {
				continue // it broke off before the header was sent on
			}
			_, err = io.ReadAll(rsp.Body)
			assert.Error(t, err, "half a response was taken for all of it")
			rsp.Body.Close()
		}
	})
}

func TestHandlerUpgrade(t *testing.T) {
	// tests.md A11; layers in between must not take anything away.
	up := serve(t, http.HandlerFunc(switchToEcho))
	stack := NewStack().Limit(10).Timeout(1 << 40)
	proxy := serve(t, Handler(stack.Service(endpoint(t, up))))
	conn, err := net.Dial("tcp", proxy)
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET /chat HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	assert.Equal(t, "echo", rsp.Header.Get("Upgrade"))
	for i := range 5 {
		sayf(conn, "word %d\n", i)
		got, err := in.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("word %d\n", i), got)
	}
	// Ending one direction leaves the other.
	say(conn, "the last")
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(in)
	require.NoError(t, err)
	assert.Equal(t, "the last", string(got))
}

func TestHandlerUpgradeRejected(t *testing.T) {
	up := serve(t, http.HandlerFunc(switchToEcho))
	proxy := serve(t, Handler(endpoint(t, up)))
	req := request(t, "GET", "http://"+proxy+"/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "something else")
	rsp, err := client(t, false).Do(req)
	require.NoError(t, err)
	assert.Equal(t, http.StatusUpgradeRequired, rsp.StatusCode)
	assert.Equal(t, "no upgrade\n", read(t, rsp))
}

func TestHandlerEarlyResponse(t *testing.T) {
	// The upstream responds before the body arrives, because it does not need it.
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		in, out := io.Pipe()
		defer out.Close()
		req := request(t, "POST", base+"/", "")
		req.Body = in
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusRequestEntityTooLarge, rsp.StatusCode)
		rsp.Body.Close()
	})
}

func TestHandlerClientAborts(t *testing.T) {
	// Half a request body must not reach the upstream as a whole one.
	result := make(chan error, 1)
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		result <- err
	}))
	for _, opts := range [][]EndpointOption{{WithHTTP1()}, {WithHTTP2()}} {
		proxy := serve(t, Handler(endpoint(t, up, opts...)))
		for _, framing := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			conn, err := net.Dial("tcp", proxy)
			require.NoError(t, err)
			sayf(conn, "POST / HTTP/1.1\r\nHost: web\r\n%s\r\n\r\n4\r\nhalf\r\n", framing)
			require.NoError(t, conn.Close())
			assert.Error(t, <-result)
		}
	}
}

func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl on this machine")
	}
	up := serve(t, http.HandlerFunc(shapes))
	proxy := serve(t, Handler(endpoint(t, up)))
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		args = append([]string{"--silent", "--show-error", "--noproxy", "*", "--max-time", "20"}, args...)
		out, err := exec.CommandContext(t.Context(), curl, args...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && bytes.Contains(out, []byte("nsupported")) {
			t.Skipf("this curl cannot: %s", out)
		}
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for name, version := range map[string]string{
		"HTTP/1.0": "--http1.0", "HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge",
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, version, "--include", "http://"+proxy+"/length")
			assert.True(t, strings.HasPrefix(got, name+" 200"), got)
			assert.True(t, strings.HasSuffix(got, "\r\n\r\nhello"), got)
			assert.Equal(t, "0,1,2,", run(t, version, "http://"+proxy+"/chunks"))
			assert.Equal(t, "a=b", run(t, version, "--data", "a=b", "http://"+proxy+"/echo"))
			got = run(t, version, "--head", "http://"+proxy+"/length")
			assert.Contains(t, strings.ToLower(got), "content-length: 5\r\n")
			if name != "HTTP/1.0" {
				got = run(t, version, "--include", "http://"+proxy+"/early")
				assert.Contains(t, got, " 103")
				big := strings.Repeat("x", 3<<20)
				cmd := exec.CommandContext(t.Context(), curl, "-sS", "--noproxy", "*", version, "-T", "-", "-X", "POST", "http://"+proxy+"/echo")
				cmd.Stdin = strings.NewReader(big)
				out, err := cmd.Output()
				require.NoError(t, err)
				assert.Len(t, out, len(big))
			}
		})
	}
	t.Run("h2c upgrade is answered in HTTP/1.1", func(t *testing.T) { // tests.md A13
		got := run(t, "--http2", "--include", "http://"+proxy+"/length")
		assert.True(t, strings.HasPrefix(got, "HTTP/1.1 200"), got)
	})
}

// A client that cancels a stream keeps its connection and the other streams. A GOAWAY would
// make it reconnect for every canceled call.
func TestHandlerKeepsConnectionOnCancel(t *testing.T) {
	asked, gone := make(chan struct{}, 1), make(chan struct{})
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		if r.Header.Get("Wait") == "" {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}))
	s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Wait") != "" {
			defer func() { gone <- struct{}{} }() // writing to the canceled stream panics
		}
		h.ServeHTTP(w, r)
	}))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.open(1, true, "wait", "1")
	<-asked
	_ = c.WriteRSTStream(1, xhttp2.ErrCodeCancel)
	<-gone
	c.open(3, true)
	seen := c.until(is("end 3"))
	_ = c.WritePing(false, [8]byte{1}) // behind a GOAWAY, if there were one
	seen = append(seen, c.until(is("ping"))...)
	assert.NotContains(t, kindsOf(seen), "goaway")
	conn.Close()
	<-done
}

// earlyServer is a server that responds before the end of an upload. Then it does one of these: keep
// reading ("reads"), close the connection ("closes") or reset it ("resets"), or reset the stream with
// NO_ERROR ("stops").
type earlyServer struct {
	status int
	then   string
	conns  atomic.Int32
}

func (s *earlyServer) end(conn net.Conn) {
	if s.then == "resets" {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	conn.Close()
}

// serveH1 serves requests with a body by an early response, and others by "next".
func (s *earlyServer) serveH1(_ int, conn net.Conn) {
	s.conns.Add(1)
	in := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(in)
		switch {
		case err != nil:
			return
		case req.ContentLength == 0:
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext")
			continue
		}
		_, _ = io.CopyN(io.Discard, req.Body, 100)
		sayf(conn, "HTTP/1.1 %d Early\r\nContent-Length: 5\r\n\r\nearly", s.status)
		if s.then != "reads" {
			s.end(conn)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// serveH2 is serveH1 for HTTP/2.
func (s *earlyServer) serveH2(_ int, conn net.Conn) {
	s.conns.Add(1)
	c := newRawH2(conn)
	if c.preface() != nil {
		return
	}
	c.settings(100)
	early := map[uint32]bool{}
	for {
		kind, flags, stream, payload, err := c.next()
		switch {
		case err != nil:
			return
		case kind == frameHeaders && flags&flagEndStream != 0:
			c.respond(stream, "next")
		case kind == frameData && !early[stream]:
			early[stream] = true
			// :status without indexing, with the name of entry 8 of the static table
			c.frame(frameHeaders, flagEndHeader, stream, fmt.Appendf([]byte{0x08, 3}, "%d", s.status))
			c.frame(frameData, flagEndStream, stream, []byte("early"))
			switch s.then {
			case "stops":
				c.reset(stream, message.CodeNo)
			case "closes", "resets":
				s.end(conn)
				return
			}
		}
		if kind == frameData && len(payload) > 0 {
			n := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
			c.frame(frameWindowUpdate, 0, 0, n)
			if s.then == "reads" {
				c.frame(frameWindowUpdate, 0, stream, n)
			}
		}
	}
}

// A response that a server sends before the end of an upload reaches the client, whatever the server then
// does with the rest. The upload is larger than all buffers between them.
func TestEarlyResponse(t *testing.T) {
	const size = 16 << 20
	for _, upstream := range []string{"HTTP/1.1", "HTTP/2"} {
		for _, downstream := range []string{"HTTP/1.1", "HTTP/2"} {
			for _, then := range []string{"reads", "closes", "resets", "stops"} {
				if then == "stops" && upstream == "HTTP/1.1" {
					continue
				}
				for _, status := range []int{200, 401, 413} {
					t.Run(fmt.Sprintf("%s to %s, %d, %s", downstream, upstream, status, then), func(t *testing.T) {
						s := &earlyServer{status: status, then: then}
						protocol, serve := WithHTTP1(), s.serveH1
						if upstream == "HTTP/2" {
							protocol, serve = WithHTTP2(), s.serveH2
						}
						e := endpoint(t, conntest.Serve(t, serve), protocol)
						var fronts atomic.Int32
						addr := countingFront(t, Handler(e, WithLogger(nil)), &fronts)
						c := client(t, downstream == "HTTP/2")
						for range 2 {
							body := &lazyBody{left: size}
							rsp, err := c.Post("http://"+addr+"/", "text/plain", body)
							require.NoError(t, err)
							assert.Equal(t, status, rsp.StatusCode)
							assert.Equal(t, "early", read(t, rsp))
							require.Eventually(t, body.closed.Load, patience, time.Millisecond)
							require.Eventually(t, func() bool { // else the next request may use a connection that has just ended
								conns, _, _ := e.h2.usage()
								return conns == 0 || then == "reads" || then == "stops"
							}, patience, time.Millisecond)
							rsp, err = c.Get("http://" + addr + "/")
							require.NoError(t, err)
							assert.Equal(t, "next", read(t, rsp))
						}
						require.Eventually(t, func() bool {
							_, _, h1 := e.h1.usage()
							_, _, h2 := e.h2.usage()
							return h1+h2 == 0
						}, patience, time.Millisecond)
						if upstream == "HTTP/2" && (then == "reads" || then == "stops") {
							assert.EqualValues(t, 1, s.conns.Load(), "connections to the server")
						}
						if downstream == "HTTP/2" {
							assert.EqualValues(t, 1, fronts.Load(), "connections of the client")
						}
					})
				}
			}
		}
	}
}

// countingFront serves h, and counts the connections.
func countingFront(t *testing.T, h http.Handler, conns *atomic.Int32) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return servingOn(t, countingListener{l, conns}, h, 0).addr
}

type countingListener struct {
	net.Listener
	conns *atomic.Int32
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns.Add(1)
	}
	return conn, err
}

// lazyBody is a body of zero bytes that records its Close.
type lazyBody struct {
	mu     sync.Mutex
	left   int
	closed atomic.Bool
}

func (b *lazyBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(b.left, len(p))
	b.left -= n
	return n, nil
}

func (b *lazyBody) Close() error {
	b.closed.Store(true)
	return nil
}

// silentServer never sends 100 Continue. It responds with the digest of the request body.
func silentServer(t *testing.T, h2 bool) (addr string) {
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		if h2 {
			if c := newRawH2(conn); c.preface() == nil {
				echoRaw(c, func(uint32) bool { return false })
			}
			return
		}
		in := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			got := digest(string(body))
			sayf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(got), got)
		}
	})
}

// Expect adds no delay: a body is forwarded when it arrives, whether or not the server sends 100 Continue,
// and a client that waits for 100 Continue receives it.
func TestExpectContinueWithoutDelay(t *testing.T) {
	pause := message.ContinueTimeout.Load()
	t.Cleanup(func() { message.ContinueTimeout.Store(pause) })
	sending := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // sends 100 Continue
		say(w, digest(string(body)))
	})
	clients := map[string]time.Duration{"at once": 0, "after 0.3 s": 300 * time.Millisecond, "when it is asked to": time.Hour}
	for _, downstream := range []string{"HTTP/1.1", "HTTP/2"} {
		for upstream, protocol := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
			for client, wait := range clients {
				for server, addr := range map[string]string{
					"server that sends 100": serve(t, sending), "server that does not": silentServer(t, upstream == "HTTP/2"),
				} {
					t.Run(fmt.Sprintf("%s to %s, %s, body %s", downstream, upstream, server, client), func(t *testing.T) {
						message.ContinueTimeout.Store(int64(time.Hour)) // the test would fail by its client's time limit
						if server == "server that does not" && wait == time.Hour {
							message.ContinueTimeout.Store(int64(10 * time.Millisecond))
						}
						front := servingBy(t, Handler(endpoint(t, addr, protocol)))
						expectTwice(t, front.addr, downstream == "HTTP/2", wait)
					})
				}
			}
		}
	}
}

// Expect adds no delay either if layers or middleware wrap the body, as in examples/gateway.
func TestExpectContinueBelowLayers(t *testing.T) {
	pause := message.ContinueTimeout.Load()
	t.Cleanup(func() { message.ContinueTimeout.Store(pause) })
	message.ContinueTimeout.Store(int64(time.Hour))
	mirror := layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
		pipe(io.Discard, r.Body)
		return HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusOK}), nil
	})
	anyway := policy{CanRetry: func(*http.Request) bool { return true }}
	wraps := map[string]func(Service) http.Handler{
		"retry":  func(s Service) http.Handler { return Handler(NewStack().Retry(anyway).Service(s)) },
		"logged": func(s Service) http.Handler { return Handler(s, WithAccessLog(io.Discard, JSONLog, nil)) },
		"mirror": func(s Service) http.Handler {
			return Handler(NewStack().Mirror(t.Context(), mirror, HTTP{}, MirrorPolicy{}).Service(s))
		},
		"all": func(s Service) http.Handler {
			stack := NewStack().Timeout(patience).Retry(anyway).Queue(9, patience).IdleTimeout(patience)
			return Handler(stack.Service(s), WithAccessLog(io.Discard, JSONLog, nil))
		},
	}
	for _, downstream := range []string{"HTTP/1.1", "HTTP/2"} {
		for upstream, protocol := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
			addr := silentServer(t, upstream == "HTTP/2")
			for name, wrap := range wraps {
				for client, wait := range map[string]time.Duration{"at once": 0, "after 0.1 s": 100 * time.Millisecond} {
					t.Run(fmt.Sprintf("%s, %s to %s, body %s", name, downstream, upstream, client), func(t *testing.T) {
						front := servingBy(t, wrap(endpoint(t, addr, protocol)))
						expectTwice(t, front.addr, downstream == "HTTP/2", wait)
					})
				}
			}
		}
	}
}

// expectTwice sends two requests over one connection, with bodies that the client sends after wait or after
// 100 Continue.
func expectTwice(t *testing.T, addr string, h2 bool, wait time.Duration) {
	t.Helper()
	c := client(t, h2)
	c.Transport.(*http.Transport).ExpectContinueTimeout = wait
	c.Timeout = patience
	for range 2 {
		req := request(t, http.MethodPost, "http://"+addr+"/", "hello")
		req.Header.Set("Expect", "100-continue")
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, rsp.StatusCode)
		assert.Equal(t, digest("hello"), read(t, rsp))
	}
}

// A server that refuses the body does not receive it, and the next request succeeds.
func TestExpectContinueRefused(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pipe(w, r.Body)
	}))
	for _, downstream := range []string{"HTTP/1.1", "HTTP/2"} {
		for upstream, protocol := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
			for client, wait := range map[string]time.Duration{"at once": 0, "when it is asked to": time.Hour} {
				t.Run(fmt.Sprintf("%s to %s, body %s", downstream, upstream, client), func(t *testing.T) {
					front := servingBy(t, Handler(endpoint(t, addr, protocol)))
					refusedThenAccepted(t, front.addr, downstream == "HTTP/2", wait)
				})
			}
		}
	}
}

func refusedThenAccepted(t *testing.T, addr string, h2 bool, wait time.Duration) {
	t.Helper()
	c := client(t, h2)
	c.Transport.(*http.Transport).ExpectContinueTimeout = wait
	c.Timeout = patience
	for range 3 {
		req := request(t, http.MethodPut, "http://"+addr+"/no", "hello")
		req.Header.Set("Expect", "100-continue")
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnauthorized, rsp.StatusCode)
		read(t, rsp)
		rsp, err = c.Do(request(t, http.MethodPut, "http://"+addr+"/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
	}
}
