package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

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
		return Editor{}.NewResponse(r, layer.DirectResponse{Status: 200, Message: "hello", Header: []layer.HeaderField{{Name: "X-Both", Value: "svc"}}}), nil
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
		rsp := Editor{}.NewResponse(r, layer.DirectResponse{Status: 200})
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
