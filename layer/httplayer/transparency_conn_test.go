package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

func TestTransparencyA7Loop(t *testing.T) {
	refuse := WithDialContext(func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
	first, _, _ := wireTo(t, oneProxy(t, "127.0.0.1:1", refuse)).ask("GET / HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first, "outbound")
	loop := layer.Filter[*http.Request, *http.Response](func(*http.Request) error {
		return &StatusError{Code: http.StatusForbidden, Reason: "loop"}
	})
	c := wireTo(t, serve(t, Handler(loop(endpoint(t, "127.0.0.1:1")), WithErrorHeaders(true))))
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
	proxy := serve(t, Handler(UpgradeOrigProto()(endpoint(t, inbound, WithHTTP2())), WithErrorHeaders(true)))
	for range 2 {
		c := wireTo(t, proxy)
		first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
		assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
		assert.Contains(t, fields, "L5d-Proxy-Connection: close")
		c.over()
	}
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
