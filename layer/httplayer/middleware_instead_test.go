package httplayer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client

	"github.com/gotower/gotower/layer"
)

// answeringBy is layers that answer by themselves.
func answeringBy(rsp func(r *http.Request) *http.Response) layer.Layer[*http.Request, *http.Response] {
	return func(Service) Service {
		return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) { return rsp(r), nil })
	}
}

// The options for error responses also apply to a response of a layer that is invalid or whose body
// fails.
func TestMiddlewareHidesLayerErrors(t *testing.T) {
	layers := answeringBy(func(r *http.Request) *http.Response {
		rsp := Editor{}.NewResponse(r, layer.DirectResponse{Status: http.StatusOK})
		switch r.URL.Path {
		case "/status":
			rsp.StatusCode = 150
		case "/broken":
			rsp.Header.Set("Content-Type", "application/grpc")
			rsp.Body, rsp.ContentLength = readFails{errors.New("secret")}, -1
			rsp.Header.Del("Content-Length")
		}
		return rsp
	})
	for _, tells := range []bool{true, false} {
		var logged strings.Builder
		h := Middleware(layers, WithErrorHeaders(tells), WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))(http.NotFoundHandler())
		ask := func(r *http.Request) *http.Response {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result()
		}
		rsp := ask(httptest.NewRequest(http.MethodGet, "/status", nil))
		assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		assert.Equal(t, tells, rsp.Header.Get("L5d-Proxy-Error") != "")
		assert.Contains(t, logged.String(), "invalid response status 150")

		rsp = ask(httptest.NewRequest(http.MethodConnect, "web:443", nil))
		assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		assert.Equal(t, tells, rsp.Header.Get("L5d-Proxy-Error") != "")

		r := httptest.NewRequest(http.MethodPost, "/broken", strings.NewReader("x"))
		r.ProtoMajor, r.ProtoMinor = 2, 0
		r.Header.Set("Content-Type", "application/grpc")
		rsp = ask(r)
		assert.Equal(t, "14", rsp.Trailer.Get("Grpc-Status"))
		assert.Equal(t, tells, rsp.Trailer.Get("Grpc-Message") != "")
	}
}

// readFails is a body that ends with an error.
type readFails struct{ err error }

func (b readFails) Read([]byte) (int, error) { return 0, b.err }
func (readFails) Close() error               { return nil }

// A Middleware within another one sends its own answers.
func TestMiddlewareNested(t *testing.T) {
	inner := Middleware(answeringBy(func(r *http.Request) *http.Response {
		return Editor{}.NewResponse(r, layer.DirectResponse{Status: http.StatusTeapot, Message: "inner"})
	}))(http.NotFoundHandler())
	for name, tt := range map[string]struct {
		outer  layer.Layer[*http.Request, *http.Response]
		status int
	}{
		"inner": {nil, http.StatusTeapot},
		"outer": {answeringBy(func(r *http.Request) *http.Response {
			return Editor{}.NewResponse(r, layer.DirectResponse{Status: http.StatusForbidden, Message: "outer"})
		}), http.StatusForbidden},
	} {
		w := httptest.NewRecorder()
		Middleware(tt.outer)(inner).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		assert.Equal(t, tt.status, w.Code)
		assert.Equal(t, name, w.Body.String())
	}
}

// A rejected CONNECT over HTTP/2 does not end the connection, because other requests share it.
func TestMiddlewareHTTP2Connect(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for name, body := range map[string]func() io.ReadCloser{
		"no tunnel": func() io.ReadCloser { return http.NoBody },
		"tunnel":    func() io.ReadCloser { return near },
	} {
		t.Run(name, func(t *testing.T) {
			front := servingBy(t, Middleware(answeringBy(func(r *http.Request) *http.Response {
				rsp := Editor{}.NewResponse(r, layer.DirectResponse{Status: http.StatusOK})
				if r.Method == http.MethodConnect {
					rsp.Body, rsp.ContentLength = body(), -1
				}
				return rsp
			}))(http.NotFoundHandler()))
			conn, err := net.Dial("tcp", front.addr)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			c := newFramerClient(t, conn)
			c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			for i, fields := range [][]string{
				{":method", "CONNECT", ":authority", "web:443"},
				{":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/"},
			} {
				c.block.Reset()
				for f := 0; f < len(fields); f += 2 {
					require.NoError(t, c.enc.WriteField(hpackField(fields[f], fields[f+1])))
				}
				require.NoError(t, c.WriteHeaders(xhttp2.HeadersFrameParam{
					StreamID: uint32(2*i + 1), BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true,
				}))
				head := (*xhttp2.MetaHeadersFrame)(nil)
				for ok := false; !ok; {
					frame, err := c.ReadFrame()
					require.NoError(t, err)
					assert.NotEqual(t, xhttp2.FrameGoAway, frame.Header().Type)
					head, ok = frame.(*xhttp2.MetaHeadersFrame)
				}
				assert.Equal(t, [...]string{"502", "200"}[i], head.PseudoValue("status"))
			}
		})
	}
}
