package httplayer

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client

	"github.com/gotower/gotower/layer"
)

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
					var a Accessor
					routed <- saidHost{a.Authority(r), a.RequestHeader(r).Get("Host"), a.Path(r)}
					if edited {
						r = Editor{}.EditRequest(r, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Foo", Value: "1"}}})
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
			saw <- r.Host + " " + Accessor{}.RequestHeader(r).Get("Host")
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
	edited := Editor{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "X-Foo", Value: "1"}}})
	assert.Equal(t, "public", edited.Host)
	assert.NotContains(t, edited.Header, "Host")
	assert.Equal(t, "private", req.Header.Get("Host"), "of another request")
	edited = Editor{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{{Name: "Host", Value: "web"}}})
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
		return Editor{}.NewResponse(r, layer.DirectResponse{Status: 200}), nil
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
