package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// The rows of tests.md A: the messages between a client and an application
// through one proxy, and through two that have HTTP/2 between them.

// oneProxy is a proxy in front of up.
func oneProxy(t testing.TB, up string, opts ...EndpointOption) (addr string) {
	t.Helper()
	return serve(t, Handler(endpoint(t, up, opts...), WithConnect(), WithCloseOnError(true)))
}

// Mesh has the layers of package mesh, which imports this one. An external test file sets it.
var Mesh struct{ Upgrade, Downgrade, ProxyErrors Layer }

// withErrorHeaders is what package mesh offers as WithErrorHeaders(true).
func withErrorHeaders() HandlerOption {
	return WithErrorHeaders("L5d-Proxy-Error", "L5d-Proxy-Connection")
}

// twoProxies is an outbound proxy, and behind it an inbound one, in front of
// up. opts are for the connections to up.
func twoProxies(t testing.TB, up string, opts ...EndpointOption) (addr string) {
	t.Helper()
	inbound := serve(t, Handler(Mesh.Downgrade(endpoint(t, up, opts...)), WithConnect(), withErrorHeaders()))
	outbound := Mesh.ProxyErrors(Mesh.Upgrade(endpoint(t, inbound, WithHTTP2())))
	return serve(t, Handler(outbound, WithConnect()))
}

// oneAndTwo runs a row through one proxy and through two.
func oneAndTwo(t *testing.T, test func(t *testing.T, through func(t testing.TB, up string, opts ...EndpointOption) string)) {
	t.Run("one", func(t *testing.T) { test(t, oneProxy) })
	t.Run("two", func(t *testing.T) { test(t, twoProxies) })
}

// receivedRequest is a request as an application received it.
type receivedRequest struct {
	conn   int // which connection it came by
	first  string
	fields []string
	body   string
}

// application answers every request with the bytes of answer and reports the received
// requests. It closes a connection after a response with Connection: close.
func application(t testing.TB, answer string) (addr string, got <-chan receivedRequest) {
	t.Helper()
	out := make(chan receivedRequest, 100)
	addr = conntest.Serve(t, func(n int, conn net.Conn) {
		var bytes bytes.Buffer
		in := bufio.NewReader(io.TeeReader(conn, &bytes))
		for {
			bytes.Reset()
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			first, fields := head(strings.ReplaceAll(bytes.String(), "\r\n", "\n"))
			out <- receivedRequest{n, first, fields, string(body)}
			say(conn, answer)
			if strings.Contains(answer, "Connection: close") || req.ProtoMinor == 0 {
				return
			}
		}
	})
	return addr, out
}

// wireClient is a client that sends arbitrary bytes.
type wireClient struct {
	net.Conn
	t     testing.TB
	in    *bufio.Reader
	bytes bytes.Buffer
}

func wireTo(t testing.TB, addr string) *wireClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	c := &wireClient{Conn: conn, t: t}
	c.in = bufio.NewReader(io.TeeReader(conn, &c.bytes))
	return c
}

// ask sends a request, lines ended by \n, and returns the bytes of the answer's
// first line, its fields in order, and its body.
func (c *wireClient) ask(sent string) (first string, fields []string, body string) {
	c.t.Helper()
	return c.askEarly(sent, "")
}

// askEarly is ask, with bytes that do not wait for the answer.
func (c *wireClient) askEarly(sent, early string) (first string, fields []string, body string) {
	c.t.Helper()
	say(c, strings.ReplaceAll(sent, "\n", "\r\n")+early)
	method, _, _ := strings.Cut(sent, " ")
	c.bytes.Reset()
	rsp, err := http.ReadResponse(c.in, &http.Request{Method: method})
	require.NoError(c.t, err)
	if rsp.StatusCode != http.StatusSwitchingProtocols && (method != http.MethodConnect || rsp.StatusCode/100 != 2) {
		b, err := io.ReadAll(rsp.Body)
		require.NoError(c.t, err)
		body = string(b)
	}
	first, fields = head(strings.ReplaceAll(c.bytes.String(), "\r\n", "\n"))
	return first, fields, body
}

// over asserts that the proxy has closed the connection.
func (c *wireClient) over() {
	c.t.Helper()
	rest, err := io.ReadAll(c.in)
	require.NoError(c.t, err)
	require.Empty(c.t, string(rest))
}

// undated is fields without Date, which a proxy adds to answers.
func undated(fields []string) []string {
	out := make([]string, 0, len(fields))
	for _, f := range fields {
		if !strings.HasPrefix(f, "Date: ") {
			out = append(out, f)
		}
	}
	return out
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The requests that the application receives, by the row of tests.md.
func TestTransparencyA1ToA18Requests(t *testing.T) {
	for name, tt := range map[string]struct {
		sent, first string
		fields      []string
		body        string
	}{
		"A1 HTTP/1 request": {"GET /a?b=c HTTP/1.1\nHost: web\nX-A: 1\n\n", "GET /a?b=c HTTP/1.1", []string{"Host: web", "X-A: 1"}, ""},
		"A8 hop-by-hop headers are stripped": {
			"GET / HTTP/1.1\nHost: web\nConnection: X-Mine, close, Keep-Alive\nX-Mine: 1\nKeep-Alive: 5\nProxy-Connection: keep-alive\nX-Yours: 2\n\n",
			"GET / HTTP/1.1", []string{"Host: web", "X-Yours: 2"}, "",
		},
		"A9 HTTP/1.0 with Host": {"GET /a HTTP/1.0\nHost: web\n\n", "GET /a HTTP/1.0", []string{"Host: web"}, ""},
		"A9 HTTP/1.0 with a body": {
			"POST /a HTTP/1.0\nHost: web\nContent-Length: 5\n\nhello", "POST /a HTTP/1.0", []string{"Content-Length: 5", "Host: web"}, "hello",
		},
		"A10 an absolute target that differs from Host": {
			"GET http://web.default/a?b HTTP/1.1\nHost: other\n\n", "GET http://web.default/a?b HTTP/1.1", []string{"Host: web.default"}, "",
		},
		"A10 an absolute target without a path": {
			"GET http://web.default HTTP/1.1\nHost: web.default\n\n", "GET http://web.default/ HTTP/1.1", []string{"Host: web.default"}, "",
		},
		"A12 l5d-orig-proto is not leaked": {
			"GET / HTTP/1.1\nHost: web\nl5d-orig-proto: HTTP/1.0; absolute-form\n\n", "GET / HTTP/1.1", []string{"Host: web"}, "",
		},
		"A13 an upgrade to h2c is stripped": {
			"GET / HTTP/1.1\nHost: web\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n",
			"GET / HTTP/1.1", []string{"Host: web"}, "",
		},
		"A16 a body with a length": {
			"POST / HTTP/1.1\nHost: web\nContent-Length: 5\n\nhello", "POST / HTTP/1.1", []string{"Content-Length: 5", "Host: web"}, "hello",
		},
		"A16 a body in chunks": {
			"POST / HTTP/1.1\nHost: web\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n",
			"POST / HTTP/1.1", []string{"Host: web", "Transfer-Encoding: chunked"}, "hello",
		},
		"A17 nothing is added to GET":    {"GET / HTTP/1.1\nHost: web\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to POST":   {"POST / HTTP/1.1\nHost: web\n\n", "POST / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to PUT":    {"PUT / HTTP/1.1\nHost: web\n\n", "PUT / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to PATCH":  {"PATCH / HTTP/1.1\nHost: web\n\n", "PATCH / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to DELETE": {"DELETE / HTTP/1.1\nHost: web\n\n", "DELETE / HTTP/1.1", []string{"Host: web"}, ""},
		"A18 a length of 0": {
			"POST / HTTP/1.1\nHost: web\nContent-Length: 0\n\n", "POST / HTTP/1.1", []string{"Content-Length: 0", "Host: web"}, "",
		},
		"OPTIONS *": {"OPTIONS * HTTP/1.1\nHost: web\n\n", "OPTIONS * HTTP/1.1", []string{"Host: web"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
				if strings.Contains(t.Name(), "A12") && strings.HasSuffix(t.Name(), "/one") {
					t.Skip("a proxy by itself has nothing to say about it")
				}
				up, got := application(t, okAnswer)
				first, fields, body := wireTo(t, through(t, up)).ask(tt.sent)
				r := <-got
				assert.Equal(t, tt.first, r.first)
				if strings.HasPrefix(name, "A17 nothing is added to P") && strings.HasSuffix(t.Name(), "/two") {
					// The HTTP/2 client of net/http sends Content-Length: 0 where others do
					// not.
					r.fields = slices.DeleteFunc(r.fields, func(f string) bool { return f == "Content-Length: 0" })
				}
				assert.Equal(t, tt.fields, r.fields)
				assert.Equal(t, tt.body, r.body)
				version, _, _ := strings.Cut(tt.first[strings.LastIndex(tt.first, " ")+1:], "\n")
				assert.Equal(t, version+" 200 OK", first, "A9: the client's version")
				if version == proto11 && !strings.Contains(tt.sent, "close") {
					assert.Equal(t, []string{"Content-Length: 2"}, undated(fields))
				}
				assert.Equal(t, "ok", body)
			})
		})
	}
}

// The responses that the client receives.
func TestTransparencyA8ToA21Responses(t *testing.T) {
	for name, tt := range map[string]struct {
		method, answer string
		first          string
		fields         []string
		body           string
	}{
		"A8 hop-by-hop headers are stripped": {
			"GET", "HTTP/1.1 200 OK\nConnection: X-Mine, keep-alive\nX-Mine: 1\nKeep-Alive: 1\nProxy-Connection: x\nUpgrade: h2c\nContent-Length: 2\n\nok",
			"200 OK", []string{"Content-Length: 2"}, "ok",
		},
		"A12 l5d-orig-proto is not leaked": {
			"GET", "HTTP/1.1 200 OK\nl5d-orig-proto: HTTP/1.0\nContent-Length: 2\n\nok", "200 OK", []string{"Content-Length: 2"}, "ok",
		},
		"A18 a length of 0":      {"GET", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "200 OK", []string{"Content-Length: 0"}, ""},
		"A19 204":                {"GET", "HTTP/1.1 204 No Content\n\n", "204 No Content", []string{}, ""},
		"A19 304":                {"GET", "HTTP/1.1 304 Not Modified\n\n", "304 Not Modified", []string{}, ""},
		"A20 HEAD":               {"HEAD", "HTTP/1.1 200 OK\nContent-Length: 500\n\n", "200 OK", []string{"Content-Length: 500"}, ""},
		"A21 to the end of file": {"GET", "HTTP/1.1 200 OK\nConnection: close\n\nto the end", "200 OK", []string{"Transfer-Encoding: chunked"}, "to the end"},
	} {
		t.Run(name, func(t *testing.T) {
			oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
				if strings.Contains(t.Name(), "A12") && strings.HasSuffix(t.Name(), "/one") {
					t.Skip("a proxy by itself has nothing to say about it")
				}
				up, _ := application(t, strings.ReplaceAll(tt.answer, "\n", "\r\n"))
				first, fields, body := wireTo(t, through(t, up)).ask(tt.method + " / HTTP/1.1\nHost: web\n\n")
				assert.Equal(t, "HTTP/1.1 "+tt.first, first)
				want := tt.fields
				if slices.Contains(fields, "Content-Length: 10") && strings.Contains(name, "A21") {
					want = []string{"Content-Length: 10"} // all of the body had arrived
				}
				assert.Equal(t, want, undated(fields))
				assert.Equal(t, tt.body, body)
			})
		})
	}
}

func TestTransparencyA19Informational(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up, _ := application(t, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"+okAnswer)
		c := wireTo(t, through(t, up))
		say(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		hint, err := http.ReadResponse(c.in, nil)
		require.NoError(t, err)
		assert.Equal(t, 103, hint.StatusCode)
		assert.Equal(t, http.Header{"Link": {"</a.css>"}}, hint.Header)
		rsp, err := http.ReadResponse(c.in, nil)
		require.NoError(t, err)
		assert.Equal(t, 200, rsp.StatusCode)
		assert.Equal(t, "ok", read(t, rsp))
	})
}

func TestTransparencyA7Loop(t *testing.T) {
	refuse := WithDialContext(func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
	first, _, _ := wireTo(t, oneProxy(t, "127.0.0.1:1", refuse)).ask("GET / HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first, "outbound")
	loop := layer.Filter[*http.Request, *http.Response](func(*http.Request) error {
		return &StatusError{Code: http.StatusForbidden, Reason: "loop"}
	})
	c := wireTo(t, serve(t, Handler(loop(endpoint(t, "127.0.0.1:1")), withErrorHeaders())))
	first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 403 Forbidden", first, "inbound")
	assert.Contains(t, fields, "L5d-Proxy-Error: filter: loop")
}

func TestTransparencyA22RefusedApplication(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		c := wireTo(t, through(t, refusedAddr(t)))
		first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
		assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
		assert.Contains(t, fields, "Connection: close")
		c.over()
	})
}

func TestTransparencyA23HTTP10WithoutHost(t *testing.T) {
	up, got := application(t, okAnswer)
	proxy := oneProxy(t, up)
	for i := range 3 {
		first, _, body := wireTo(t, proxy).ask("GET /a HTTP/1.0\n\n")
		r := <-got
		assert.Equal(t, receivedRequest{i, "GET /a HTTP/1.0", []string{}, ""}, r, "one connection each")
		assert.Equal(t, "HTTP/1.0 200 OK", first)
		assert.Equal(t, "ok", body)
	}
}

// An HTTP/2 request without an authority gets the address as its authority.
func TestTransparencyA23WithoutHostTwoProxies(t *testing.T) {
	up, got := application(t, okAnswer)
	first, _, body := wireTo(t, twoProxies(t, up)).ask("GET /a HTTP/1.0\n\n")
	assert.Equal(t, "GET /a HTTP/1.0", (<-got).first)
	assert.Equal(t, "HTTP/1.0 200 OK", first)
	assert.Equal(t, "ok", body)
}

func TestTransparencyA24ConnectionReuse(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up, got := application(t, okAnswer)
		proxy := through(t, up)
		for range 10 {
			wireTo(t, proxy).ask("GET / HTTP/1.1\nHost: web\n\n")
			assert.Zero(t, (<-got).conn)
		}
	})
}

func TestTransparencyA25OwnConnection(t *testing.T) {
	up, got := application(t, okAnswer)
	proxy := oneProxy(t, up)
	for i, sent := range []string{
		"GET / HTTP/1.1\nHost: web\n\n", "GET / HTTP/1.1\nHost:\n\n", "GET / HTTP/1.1\nHost:\n\n", "GET / HTTP/1.0\n\n",
		"GET / HTTP/1.0\nHost: web\n\n", "GET / HTTP/1.1\nHost: web\n\n",
	} {
		wireTo(t, proxy).ask(sent)
		r := <-got
		assert.Equal(t, i%5, r.conn)
		if sent == "GET / HTTP/1.1\nHost:\n\n" {
			assert.Equal(t, []string{"Host: "}, r.fields)
		}
	}
}

func TestTransparencyA26LateSuccess(t *testing.T) {
	up, _ := application(t, okAnswer)
	var dials atomic.Int32
	dial := WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) <= 2 {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	soon := WithBackoff(layer.Backoff{Min: time.Millisecond, Max: time.Millisecond})
	svc := NewStack().Queue(10, time.Minute).Service(endpoint(t, up, dial, soon))
	first, _, body := wireTo(t, serve(t, Handler(svc))).ask("GET / HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 200 OK", first)
	assert.Equal(t, "ok", body)
	assert.EqualValues(t, 3, dials.Load())
}

func TestTransparencyA27WithoutAuthority(t *testing.T) {
	var header atomic.Value
	up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { header.Store(r.Header.Get("X-Foo")) }))
	conn, err := net.Dial("tcp", oneProxy(t, up))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	say(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c := newRawH2(conn)
	c.settings(100)
	c.frame(frameHeaders, flagEndStream|flagEndHeader, 1, []byte("\x82\x86\x84\x00\x05x-foo\x03bar")) // GET, http, /
	kind, payload := byte(0), []byte(nil)
	for kind != frameHeaders {
		kind, _, _, payload, err = c.next()
		require.NoError(t, err)
	}
	assert.Equal(t, headerOK, payload[:1])
	assert.Equal(t, "bar", header.Load())
}

// After a reset before the response, an HTTP/1 client gets a 502 and the end of its connection.
func TestTransparencyA29ResetOfUpgraded(t *testing.T) {
	inbound := h2Server(t, 100, func(_ int, c *rawH2) {
		for stream := c.request(); stream != 0; stream = c.request() {
			c.reset(stream, message.CodeEnhanceYourCalm)
		}
	})
	proxy := serve(t, Handler(Mesh.Upgrade(endpoint(t, inbound, WithHTTP2())), withErrorHeaders()))
	for range 2 {
		c := wireTo(t, proxy)
		first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
		assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
		assert.Contains(t, fields, "L5d-Proxy-Connection: close")
		c.over()
	}
}

// An error of the inbound proxy closes the connection of the application, and not the connection
// between the proxies.
func TestOrigProtoErrorClosesOneClient(t *testing.T) {
	var inbounds counted
	inbound := serve(t, Handler(Mesh.Downgrade(endpoint(t, refusedAddr(t))), withErrorHeaders()))
	between := endpoint(t, inbound, WithHTTP2(), WithDialContext(inbounds.DialContext))
	outbound := serve(t, Handler(Mesh.ProxyErrors(Mesh.Upgrade(between))))
	for range 3 {
		c := wireTo(t, outbound)
		first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
		assert.Contains(t, first, "HTTP/1.1 50")
		assert.Contains(t, fields, "Connection: close")
		c.over()
	}
	assert.EqualValues(t, 1, inbounds.dials.Load())
}

// The request of a client that disconnects is canceled through both proxies.
func TestTransparencyCancellation(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		began, over := make(chan struct{}), make(chan struct{})
		up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			close(over)
		}))
		c := wireTo(t, through(t, up))
		say(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		<-began
		time.Sleep(time.Second) // earlier, it would be a half-closed client
		c.Close()
		<-over
	})
}

// The request body and the response body have 8 MiB each, more than all buffers on the way, and are
// sent at the same time.
func TestTransparencyLargeBodies(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fullDuplex(w)
			pipe(w, r.Body)
		}))
		const size = 8 << 20
		c := wireTo(t, through(t, up))
		sent := make(chan error, 1)
		go func() {
			sayf(c, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: %d\r\n\r\n", size)
			_, err := io.CopyN(c, zeroBytes{}, size)
			sent <- err
		}()
		rsp, err := http.ReadResponse(c.in, nil)
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
		assert.EqualValues(t, size, n)
		require.NoError(t, <-sent)
	})
}

type zeroBytes struct{}

func (zeroBytes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// tunnelled accepts every CONNECT and Upgrade with answer and echoes its input in upper
// case. It sends bye when its peer has closed its sending half.
func tunnelled(t testing.TB, answer string) (addr string, heads <-chan string) {
	t.Helper()
	out := make(chan string, 10)
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		var text []byte
		for one := make([]byte, 1); !strings.HasSuffix(string(text), "\r\n\r\n"); text = append(text, one...) {
			if _, err := io.ReadFull(conn, one); err != nil {
				return
			}
		}
		out <- strings.ReplaceAll(string(text), "\r\n", "\n")
		say(conn, answer)
		p := make([]byte, 1024)
		for {
			n, err := conn.Read(p)
			say(conn, strings.ToUpper(string(p[:n])))
			if err != nil {
				break
			}
		}
		say(conn, "bye")
	}), out
}

const (
	upgradeHead = "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: shout\n\n"
	severalHead = "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: sing, Shout\n\n"
	connectHead = "CONNECT web:443 HTTP/1.1\nHost: web:443\n\n"
	switching   = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n"
	established = "HTTP/1.1 200 Connection established\r\n\r\n"
)

// converse speaks through a tunnel, each word answered before the next, and
// ends one way before the other.
func converse(t *testing.T, c *wireClient, already string) {
	t.Helper()
	if already != "" {
		hear(t, c, strings.ToUpper(already))
	}
	for _, word := range []string{"one", "two"} {
		say(c, word)
		hear(t, c, strings.ToUpper(word))
	}
	require.NoError(t, c.Conn.(halfCloser).CloseWrite())
	hear(t, c, "bye")
	c.over()
}

func hear(t *testing.T, c *wireClient, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(c.in, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func TestTransparencyA11Upgrade(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		for name, tt := range map[string]struct{ head, early string }{
			"":                         {upgradeHead, ""},
			"bytes behind the request": {upgradeHead, "hello"},
			"one of several":           {severalHead, ""},
		} {
			t.Run(name, func(t *testing.T) {
				up, heads := tunnelled(t, switching)
				c := wireTo(t, through(t, up))
				first, fields, _ := c.askEarly(tt.head, tt.early)
				assert.Equal(t, "HTTP/1.1 101 Switching Protocols", first)
				assert.Equal(t, []string{"Connection: Upgrade", "Upgrade: shout"}, fields)
				assert.Equal(t, tt.head, <-heads)
				converse(t, c, tt.early)
			})
		}
	})
}

func TestTransparencyA14Connect(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		for name, tt := range map[string]struct{ answer, early string }{
			"tunnel":                    {established, ""},
			"bytes behind the request":  {established, "hello"},
			"many bytes behind it":      {established, strings.Repeat("x", 10_000)},
			"length is stripped":        {"HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\n\r\n", "hello"},
			"encoding is stripped":      {"HTTP/1.1 200 Connection established\r\nTransfer-Encoding: chunked\r\n\r\n", ""},
			"after something temporary": {"HTTP/1.1 100 Continue\r\n\r\n" + established, ""},
		} {
			t.Run(name, func(t *testing.T) {
				up, heads := tunnelled(t, tt.answer)
				c := wireTo(t, through(t, up))
				first, fields, _ := c.askEarly(connectHead, tt.early)
				assert.Equal(t, "HTTP/1.1 200 Connection established", first)
				assert.Empty(t, fields)
				assert.Equal(t, connectHead, <-heads)
				converse(t, c, tt.early)
			})
		}
	})
}

func TestTransparencyA14ConnectRejected(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up, _ := application(t, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno")
		c := wireTo(t, through(t, up))
		first, fields, body := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
		assert.Equal(t, "HTTP/1.1 407 Proxy Authentication Required", first)
		assert.Equal(t, []string{"Connection: close", "Content-Length: 2", "Proxy-Authenticate: Basic"}, undated(fields))
		assert.Equal(t, "no", body)
	})
}

func TestTransparencyA15InvalidConnect(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it went through") }))
		proxy := through(t, up)
		for _, sent := range []string{
			"CONNECT / HTTP/1.1\nHost: web\n\n", "CONNECT http://web/ HTTP/1.1\nHost: web\n\n",
			"CONNECT http://web:80 HTTP/1.1\nHost: web\n\n", "CONNECT web:80 HTTP/1.0\n\n", "CONNECT web HTTP/1.1\nHost: web\n\n",
			"CONNECT web:0 HTTP/1.1\nHost: web:0\n\n", "CONNECT me@web:80 HTTP/1.1\nHost: web:80\n\n",
			"GET web:80 HTTP/1.1\nHost: web:80\n\n", "GET web HTTP/1.1\nHost: web\n\n", "GET 10.0.0.1:80 HTTP/1.1\nHost: a\n\n",
		} {
			c := wireTo(t, proxy)
			first, fields, _ := c.ask(sent)
			assert.Contains(t, first, " 400 Bad Request", sent)
			assert.Contains(t, fields, "Connection: close")
		}
		rsp, err := client(t, true).Do(&http.Request{
			Method: http.MethodConnect, URL: request(t, "GET", "http://"+proxy, "").URL, Host: "web:443",
		})
		require.NoError(t, err)
		assert.Equal(t, 400, rsp.StatusCode, "HTTP/2")
		read(t, rsp)
	})
}

func TestConnectFails(t *testing.T) {
	silent := conntest.Serve(t, func(_ int, conn net.Conn) { pipe(io.Discard, conn) })
	endless := conntest.Serve(t, func(_ int, conn net.Conn) {
		say(conn, "HTTP/1.1 200 OK\r\nX: ")
		pipe(conn, zeroBytes{})
	})
	gone := conntest.Serve(t, func(int, net.Conn) {})
	noTunnel := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200}, nil
	})
	noHeader := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusForbidden}, nil
	})
	for name, tt := range map[string]struct {
		svc    Service
		status string
	}{
		"refused":      {endpoint(t, refusedAddr(t)), "502 Bad Gateway"},
		"broken off":   {endpoint(t, gone), "502 Bad Gateway"},
		"endless head": {endpoint(t, endless), "502 Bad Gateway"},
		"no answer":    {NewStack().ResponseHeaderTimeout(50 * time.Millisecond).Service(endpoint(t, silent)), "504 Gateway Timeout"},
		"not a tunnel": {noTunnel, "502 Bad Gateway"},
		"no header":    {noHeader, "403 Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			c := wireTo(t, serve(t, Handler(tt.svc, WithConnect())))
			first, _, _ := c.ask(connectHead)
			assert.Equal(t, "HTTP/1.1 "+tt.status, first)
			c.over()
		})
	}
}

// A tunnel is a request in flight until it ends.
func TestDrainWaitsForTunnels(t *testing.T) {
	for name, tt := range map[string]struct{ head, answer string }{
		"connect": {connectHead, established}, "upgrade": {upgradeHead, switching},
	} {
		t.Run(name, func(t *testing.T) {
			up, _ := tunnelled(t, tt.answer)
			drainer := layer.NewDrainer()
			e := endpoint(t, up, WithMaxConns(1))
			c := wireTo(t, serve(t, Handler(NewStack().Drain(drainer).Service(e), WithConnect())))
			c.askEarly(tt.head, "")
			assert.EqualValues(t, 1, drainer.InFlight())
			done, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, drainer.Drain(done), "it does not wait, and does not cut")
			drained := make(chan error, 1)
			go func() { drained <- drainer.Drain(t.Context()) }()
			_, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
			require.ErrorIs(t, err, layer.ErrNotReady, "it takes the place of a connection")
			converse(t, c, "")
			require.NoError(t, <-drained)
		})
	}
}

// The end of the context of a request closes both sides of its tunnel.
func TestTunnelContextEnds(t *testing.T) {
	up, _ := tunnelled(t, established)
	ctx, cancel := context.WithCancel(t.Context())
	h := Handler(endpoint(t, up), WithConnect())
	c := wireTo(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(ctx))
	})))
	c.askEarly(connectHead, "hello")
	hear(t, c, "HELLO")
	cancel()
	_, _ = io.Copy(io.Discard, c.in) // until it is over
}

// CONNECT is rejected without WithConnect.
func TestConnectRejectedByDefault(t *testing.T) {
	up := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it went through") }))
	c := wireTo(t, serve(t, Handler(endpoint(t, up))))
	first, fields, _ := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
	assert.Equal(t, "HTTP/1.1 501 Not Implemented", first)
	assert.Contains(t, fields, "Connection: close")
	c.over()
}

// If a tunnel is rejected, the bytes for it are never parsed as requests.
func TestConnectRejectionClosesConnection(t *testing.T) {
	for name, err := range map[string]error{
		"no route": layer.ErrNoRoute, "policy": &StatusError{Code: http.StatusForbidden}, "anything": io.ErrClosedPipe,
	} {
		t.Run(name, func(t *testing.T) {
			svc := serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				assert.Equal(t, http.MethodConnect, r.Method, "it was smuggled")
				return nil, err
			})
			c := wireTo(t, serve(t, Handler(svc, WithConnect())))
			_, fields, _ := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
			assert.Contains(t, fields, "Connection: close")
			c.over()
		})
	}
}

// A body of CONNECT might be the beginning of a tunnel.
func TestConnectRejectsBody(t *testing.T) {
	svc := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		t.Error("it went through")
		return nil, io.EOF
	})
	for _, framing := range []string{"Content-Length: 5", "Transfer-Encoding: chunked"} {
		c := wireTo(t, serve(t, Handler(svc, WithConnect())))
		first, fields, _ := c.ask("CONNECT web:443 HTTP/1.1\nHost: web:443\n" + framing + "\n\n")
		assert.Equal(t, "HTTP/1.1 400 Bad Request", first)
		assert.Contains(t, fields, "Connection: close")
	}
}

// scripted serves each connection by answering every request with answer. It sends the heads of the
// requests on the channel.
func scripted(t *testing.T, answer string) (addr string, heads <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	seen := make(chan string, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					head := ""
					for !strings.HasSuffix(head, "\r\n\r\n") {
						line, err := r.ReadString('\n')
						if err != nil {
							return
						}
						head += line
					}
					seen <- head
					say(conn, answer)
				}
			}()
		}
	}()
	return l.Addr().String(), seen
}

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The target of a request is forwarded byte for byte.
func TestProxyKeepsTarget(t *testing.T) {
	t.Parallel()
	up, heads := scripted(t, fine)
	addr := serve(t, Handler(endpoint(t, up, WithHTTP1())))
	for _, target := range []string{
		"/", "/?", "/a?b?c", "//x//y", "/a/../b/./c", "/a;b=c", "/a%2fb%2Fc%7e", "/%41", "/a[b]'c+d",
		"/|^{}\"\\`<>", "/a|b?|^{}\"\\`<>", "/\u00e9/%c3%a9?\u00e9", "/\xff", "http://h/a|b", "HTTP://h:80/%7c|", "http://h/\u00e9?x",
	} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		sayf(conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", target)
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, target)
		assert.Equal(t, http.StatusOK, rsp.StatusCode, target)
		line, _, _ := strings.Cut(<-heads, "\r\n")
		assert.Equal(t, "GET "+target+" HTTP/1.1", line)
		conn.Close()
	}
}

// The reason of a response is kept, also an empty one.
func TestProxyKeepsReason(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"200 Very Fine": "200 Very Fine", "200 ": "200 ", "200": "200 ", "404 \u00e9": "404 \u00e9", "999 Odd": "999 Odd",
	} {
		up, _ := scripted(t, "HTTP/1.1 "+line+"\r\nContent-Length: 0\r\n\r\n")
		conn, err := net.Dial("tcp", serve(t, Handler(endpoint(t, up, WithHTTP1()))))
		require.NoError(t, err)
		say(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		got, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1 "+want+"\r\n", got)
		conn.Close()
	}
}

// A malformed request body is the fault of the client: 400, without a warning.
func TestProxyMalformedRequestBody(t *testing.T) {
	t.Parallel()
	up := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	var log bytes.Buffer
	addr := serve(t, Handler(endpoint(t, up, WithHTTP1()), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	for _, chunk := range []string{"zz\r\n", "2\r\nabc\r\n", "2\nab\r\n", "ffffffffffffffffff\r\n"} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		say(conn, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk)
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, "%q", chunk)
		assert.Equal(t, http.StatusBadRequest, rsp.StatusCode, "%q", chunk)
		conn.Close()
	}
	assert.Empty(t, log.String())
}

// A response whose body is malformed from its start becomes 502.
func TestProxyMalformedResponseBody(t *testing.T) {
	t.Parallel()
	up, _ := scripted(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	e := endpoint(t, up, WithHTTP1())
	req, err := http.NewRequest(http.MethodGet, "http://h/", http.NoBody)
	require.NoError(t, err)
	_, err = e.Call(context.Background(), req)
	status, _ := StatusFromError(err)
	assert.Equal(t, http.StatusBadGateway, status)
}

// With the default limits, large headers pass in both directions and in both versions.
func TestProxyLargeHeaders(t *testing.T) {
	t.Parallel()
	header := http.Header{"Large": {strings.Repeat("a", 40<<10)}, "Cookie": {strings.Repeat("c=d;e", 20<<10)}}
	for i := range 1000 {
		header["X-"+strings.Repeat("a", i%10)+string(rune('a'+i%26))] = append(header["X-"+strings.Repeat("a", i%10)+string(rune('a'+i%26))], "v")
	}
	for name, opt := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
		t.Run(name, func(t *testing.T) {
			echo := servingBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Large"] = r.Header["Large"]
				w.Header()["Cookie"] = r.Header["Cookie"]
				w.WriteHeader(http.StatusNoContent)
			})).addr
			front := servingBy(t, Handler(endpoint(t, echo, opt))).addr
			req, err := http.NewRequest(http.MethodGet, "http://"+front+"/", http.NoBody)
			require.NoError(t, err)
			req.Header = header.Clone()
			rsp, err := endpoint(t, front, opt).Call(context.Background(), req)
			require.NoError(t, err)
			assert.Equal(t, http.StatusNoContent, rsp.StatusCode)
			assert.Len(t, rsp.Header.Get("Large"), 40<<10)
			assert.Len(t, rsp.Header.Get("Cookie"), 100<<10)
		})
	}
}

// A field that the header announces as a trailer is sent after the body only, however short the body is.
func TestServerAnnouncedTrailers(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"set before the status": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status, X-T")
			w.Header().Set("X-T", "1")
			w.Header().Set("Grpc-Status", "0")
			say(w, "a")
		},
		"set in a kept map": func(w http.ResponseWriter, _ *http.Request) {
			header := w.Header()
			header.Set("Trailer", "Grpc-Status, X-T")
			w.WriteHeader(http.StatusOK)
			say(w, "a")
			header.Set("X-T", "1")
			header.Set("Grpc-Status", "0")
		},
		"without a body": func(w http.ResponseWriter, _ *http.Request) {
			header := w.Header()
			header.Set("Trailer", "Grpc-Status, X-T")
			w.WriteHeader(http.StatusOK)
			header.Set("X-T", "1")
			header.Set("Grpc-Status", "0")
		},
	} {
		for version, opt := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
			t.Run(name+" "+version, func(t *testing.T) {
				addr := servingBy(t, handler).addr
				req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/", http.NoBody)
				require.NoError(t, err)
				rsp, err := endpoint(t, addr, opt).Call(context.Background(), req)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, rsp.Body)
				require.NoError(t, err)
				assert.NotContains(t, rsp.Header, "X-T")
				assert.NotContains(t, rsp.Header, "Grpc-Status")
				assert.Equal(t, http.Header{"X-T": {"1"}, "Grpc-Status": {"0"}}, rsp.Trailer)
			})
		}
	}
}

// corkedConn collects what is written while corked is true.
type corkedConn struct {
	net.Conn
	corked bool
	bytes  []byte
}

func (c *corkedConn) Write(p []byte) (int, error) {
	if !c.corked {
		return c.Conn.Write(p)
	}
	c.bytes = append(c.bytes, p...)
	return len(p), nil
}

// A client that closes its sending half after its requests gets all responses, however late they come.
func TestServerHalfClosedClient(t *testing.T) {
	t.Parallel()
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 3 {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(300 * time.Millisecond):
			}
			say(w, r.RequestURI)
			flush(w)
		}
	})
	proxied := Handler(endpoint(t, servingBy(t, slow).addr))
	certificates := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificates.Close()
	for name, tt := range map[string]struct {
		handler http.Handler
		secure  bool
	}{"handler": {slow, false}, "proxy": {proxied, false}, "TLS": {slow, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			// The end of a client that sends it too late is that of a client that leaves. Therefore the
			// server gets all of it at once.
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			cork := &corkedConn{Conn: conn}
			if tt.secure {
				servingOn(t, tls.NewListener(l, &tls.Config{Certificates: certificates.TLS.Certificates}), tt.handler, 0)
				client := tls.Client(cork, &tls.Config{InsecureSkipVerify: true})
				require.NoError(t, client.HandshakeContext(t.Context()))
				cork.corked = true
				conn = client
			}
			say(conn, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab")
			require.NoError(t, conn.(halfCloser).CloseWrite())
			if tt.secure {
				require.NoError(t, cork.SetWriteDeadline(time.Time{})) // CloseWrite has set one
				_, err = cork.Conn.Write(cork.bytes)
				require.NoError(t, err)
			} else {
				servingOn(t, l, tt.handler, 0)
			}
			r := bufio.NewReader(conn)
			for _, target := range []string{"/1", "/2"} {
				rsp, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				assert.Equal(t, strings.Repeat(target, 3), read(t, rsp))
			}
			_, err = r.ReadByte()
			assert.Equal(t, io.EOF, err)
		})
	}
}

// The target is kept over HTTP/2, too, and a route that rewrites the path decides what is sent.
func TestProxyKeepsTargetOverHTTP2(t *testing.T) {
	t.Parallel()
	up := servingBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { say(w, r.RequestURI) })).addr
	middle := servingBy(t, Handler(endpoint(t, up, WithHTTP1()))).addr
	front := servingBy(t, Handler(endpoint(t, middle, WithHTTP2()))).addr
	for _, target := range []string{"/?", "//x", "/a/../b", "/a%2fb", "/|^{}\"\\`<>?|\"", "/\u00e9?\u00e9"} {
		conn, err := net.Dial("tcp", front)
		require.NoError(t, err)
		sayf(conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", target)
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, target)
		assert.Equal(t, target, read(t, rsp))
		conn.Close()
	}
	req, err := http.NewRequest(http.MethodGet, "http://h/a%7cb", http.NoBody)
	require.NoError(t, err)
	req.URL.Path, req.URL.RawPath = "/new|path", "/old|path"
	rsp, err := endpoint(t, up, WithHTTP2()).Call(context.Background(), req)
	require.NoError(t, err)
	assert.Equal(t, "/new%7Cpath", read(t, rsp))
}

// askH2 sends a request of these fields, names and values, and returns the status
// of the answer.
func askH2(t *testing.T, addr string, fields ...string) (status string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	c := newFramerClient(t, conn)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for i := 0; i < len(fields); i += 2 {
		require.NoError(t, c.enc.WriteField(hpackField(fields[i], fields[i+1])))
	}
	require.NoError(t, c.WriteHeaders(xhttp2.HeadersFrameParam{
		StreamID: 1, BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true,
	}))
	for {
		frame, err := c.ReadFrame()
		require.NoError(t, err)
		switch frame := frame.(type) {
		case *xhttp2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *xhttp2.RSTStreamFrame:
			return frame.ErrCode.String()
		}
	}
}

// saidHost is what a server saw of a request.
type saidHost struct{ host, field, uri string }

// Only :authority specifies the host of an HTTP/2 request.
func TestHandlerHostBesideAuthority(t *testing.T) {
	for name, opts := range map[string][]EndpointOption{"h2": nil, "http1": {WithHTTP1()}} {
		for _, edited := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				up, routed := make(chan saidHost, 1), make(chan saidHost, 1)
				e := endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					up <- saidHost{r.Host, r.Header.Get("Host"), r.RequestURI}
				})), opts...)
				front := servingBy(t, Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
					var a HTTP
					routed <- saidHost{a.Authority(r), a.RequestHeader(r).Get("Host"), a.Path(r)}
					if edited {
						r = HTTP{}.EditRequest(r, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Foo", Value: "1"}}})
					}
					return e.Call(ctx, r)
				})))
				status := askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", "public", ":path", "/x", "host", "private")
				assert.Equal(t, "PROTOCOL_ERROR", status)
				status = askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", "public", ":path", "/x", "host", "public")
				assert.Equal(t, "200", status)
				assert.Equal(t, saidHost{"public", "", "/x"}, <-routed)
				// A server of HTTP/2 shows no field that a client of Go's sends.
				assert.Equal(t, saidHost{"public", "", "/x"}, <-up)
			})
		}
	}
}

// A Host field beside :authority is visible neither to layers nor to the handler.
func TestMiddlewareHostBesideAuthority(t *testing.T) {
	saw := make(chan string, 2)
	layers := func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			saw <- r.Host + " " + HTTP{}.RequestHeader(r).Get("Host")
			return next.Call(ctx, r)
		})
	}
	front := servingBy(t, Middleware(layers)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		saw <- r.Host + " " + r.Header.Get("Host")
	})))
	status := askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", "public", ":path", "/x", "host", "public")
	assert.Equal(t, "200", status)
	assert.Equal(t, "public ", <-saw)
	assert.Equal(t, "public ", <-saw)
}

// An edit changes Host only where it specifies a Host.
func TestEditRequestKeepsHost(t *testing.T) {
	req := request(t, "GET", "http://public/", "")
	req.Header.Set("Host", "private")
	edited := HTTP{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Foo", Value: "1"}}})
	assert.Equal(t, "public", edited.Host)
	assert.NotContains(t, edited.Header, "Host")
	assert.Equal(t, "private", req.Header.Get("Host"), "of another request")
	edited = HTTP{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "Host", Value: "web"}}})
	assert.Equal(t, "web", edited.Host)
}

// directed is h behind a handler that fills in the URL, as many do that are made for
// a proxy: that is not what the client sent.
func directed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host = "http", "backend"
		h.ServeHTTP(w, r)
	})
}

// An HTTP/2 path that is a URL is rejected, because it would be routed by one authority and sent with
// the other.
func TestHTTP2PathRejectsURL(t *testing.T) {
	called := make(chan string, 10)
	svc := serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		called <- r.RequestURI
		return HTTP{}.NewResponse(r, layer.DirectResponse{Status: 200}), nil
	})
	layers := Middleware(func(Service) Service { return svc })(http.NotFoundHandler())
	for name, h := range map[string]http.Handler{
		"handler": Handler(svc), "directed handler": directed(Handler(svc)),
		"middleware": layers, "directed middleware": directed(layers),
	} {
		front := servingBy(t, h)
		for path, status := range map[string]string{
			"http://public/x": "PROTOCOL_ERROR", "http://private/x": "PROTOCOL_ERROR", "file:///x": "PROTOCOL_ERROR",
			"/http://public/x": "200", "//public/x": "200", "*": "PROTOCOL_ERROR",
		} {
			t.Run(name+" "+path, func(t *testing.T) {
				require.Equal(t, status, askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", "private", ":path", path))
				if status == "200" {
					assert.Equal(t, path, <-called)
				}
				assert.Empty(t, called)
			})
		}
	}
}

// The fields of a request and of its response keep their order, also below middleware. Fields that a layer
// adds follow.
func TestOrderOfFields(t *testing.T) {
	var lines strings.Builder
	for i := range 20 {
		fmt.Fprintf(&lines, "X-%d: %d\r\n", i*7%20, i)
	}
	received := make(chan string, 1)
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		for in := bufio.NewReader(conn); ; {
			request, err := readHead(in)
			if err != nil {
				return
			}
			received <- request
			say(conn, "HTTP/1.1 200 OK\r\n"+lines.String()+"X-0: again\r\nContent-Length: 0\r\n\r\n")
		}
	})
	next := endpoint(t, up)
	adds := func(ctx context.Context, r *http.Request) (*http.Response, error) {
		r = r.Clone(ctx)
		r.Header.Set("A-Request", "added")
		r.Header.Del("X-14")
		rsp, err := next.Call(ctx, r)
		if err == nil {
			rsp.Header.Set("A-Response", "added")
		}
		return rsp, err
	}
	svc := layer.Func[*http.Request, *http.Response](adds)
	for name, output := range map[string]io.Writer{"plain": nil, "logged": io.Discard} {
		t.Run(name, func(t *testing.T) {
			front := servingBy(t, Handler(svc, WithAccessLog(output, JSONLog, nil)))
			ordered(t, front.addr, lines.String(), received)
		})
	}
}

// ordered sends requests with these lines to the proxy at addr, and checks what its upstream received and
// what the proxy responds.
func ordered(t *testing.T, addr, lines string, received <-chan string) {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	for range 10 {
		say(conn, "GET / HTTP/1.1\r\nHost: h\r\n"+lines+"\r\n")
		response, err := readHead(in)
		require.NoError(t, err)
		without14 := strings.Replace(lines, "X-14: 2\r\n", "", 1)
		assert.Equal(t, "GET / HTTP/1.1\r\nHost: h\r\n"+without14+"A-Request: added\r\n\r\n", <-received)
		both := strings.Replace(lines, "X-0: 0\r\n", "X-0: 0\r\nX-0: again\r\n", 1)
		response, _, _ = strings.Cut(response, "Date:")
		assert.Equal(t, "HTTP/1.1 200 OK\r\n"+both+"A-Response: added\r\n", response)
	}
}

// readHead reads up to the empty line.
func readHead(in *bufio.Reader) (string, error) {
	var head strings.Builder
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		line, err := in.ReadString('\n')
		if err == io.EOF && head.Len() > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		head.WriteString(line)
	}
	return head.String(), nil
}
