package httplayer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
