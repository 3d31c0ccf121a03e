package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client

	"github.com/gotower/gotower/layer"
)

// seen is a layer that keeps what came of the requests that it saw.
type seen struct {
	Service
	outcomes chan layer.Outcome[*http.Response]
}

func (s seen) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	rsp, err := s.Service.Call(ctx, r)
	s.outcomes <- layer.Outcome[*http.Response]{Response: rsp, Err: err, Ended: true}
	return rsp, err
}

// watched is layers above that, with a time limit so that there is a context
// other than the server's.
func watched(outcomes chan layer.Outcome[*http.Response]) layer.Layer[*http.Request, *http.Response] {
	return NewStack().Timeout(time.Minute).Limit(10).
		With("seen", func(next Service) Service { return seen{next, outcomes} }).Layer()
}

// bothWays runs a test with a client of HTTP/1.1 and one of HTTP/2.
func bothWays(t *testing.T, h http.Handler, test func(t *testing.T, c *http.Client, base string)) {
	t.Helper()
	for name, two := range map[string]bool{"http1": false, "h2": true} {
		t.Run(name, func(t *testing.T) { test(t, client(t, two), "http://"+serve(t, h)) })
	}
}

func TestMiddlewareServes(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Name", r.PathValue("name"))
		fullDuplex(w)
		pipe(w, r.Body)
	})
	mux.HandleFunc("/implicit", func(w http.ResponseWriter, _ *http.Request) { say(w, "x") })
	mux.HandleFunc("/nothing", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/teapot", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum, Grpc-Status")
		say(w, "x")
		w.Header().Set("Sum", "1")
		w.Header().Set(http.TrailerPrefix+"Late", "2")
		w.Header().Set("Grpc-Status", "14")
	})
	bothWays(t, Middleware(watched(outcomes))(mux), func(t *testing.T, c *http.Client, base string) {
		for _, tt := range []struct {
			method, path, want string
			status             int
		}{
			{"POST", "/echo/you", "hello", 200}, {"GET", "/implicit", "x", 200}, {"GET", "/nothing", "", 200},
			{"GET", "/teapot", "", 418}, {"GET", "/trailers", "x", 200}, {"GET", "/none", "404 page not found\n", 404},
		} {
			body := ""
			if tt.method == http.MethodPost {
				body = "hello"
			}
			rsp, err := c.Do(request(t, tt.method, base+tt.path, body))
			require.NoError(t, err)
			assert.Equal(t, tt.want, read(t, rsp), tt.path)
			assert.Equal(t, tt.status, rsp.StatusCode, tt.path)
			out := <-outcomes
			require.NoError(t, out.Err)
			assert.Equal(t, tt.status, out.Response.StatusCode, tt.path)
			switch tt.path {
			case "/echo/you":
				assert.Equal(t, "you", rsp.Header.Get("X-Name"))
				assert.Equal(t, "you", out.Response.Header.Get("X-Name"))
			case "/trailers":
				want := http.Header{"Sum": {"1"}, "Late": {"2"}, "Grpc-Status": {"14"}}
				assert.Equal(t, want, rsp.Trailer)
				assert.Equal(t, want, out.Response.Trailer)
				assert.Equal(t, layer.Retryable, Classify(out))
			}
		}
	})
}

func TestMiddlewareStreams(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	next := make(chan struct{})
	h := Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.(http.Flusher).Flush()
		<-next
		say(w, "more")
		flush(w)
		<-next
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		var hints int
		req := request(t, http.MethodGet, base, "")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil },
		}))
		rsp, err := c.Do(req) // the head was flushed
		require.NoError(t, err)
		assert.Equal(t, 1, hints)
		next <- struct{}{}
		piece := make([]byte, 4)
		_, err = io.ReadFull(rsp.Body, piece)
		require.NoError(t, err)
		next <- struct{}{}
		read(t, rsp)
		assert.Equal(t, 200, (<-outcomes).Response.StatusCode)
	})
}

func TestMiddlewareWriterInterfaces(t *testing.T) {
	bothWays(t, Middleware(nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		_, readerFrom := w.(io.ReaderFrom)
		_, stringWriter := w.(io.StringWriter)
		assert.Equal(t, []bool{true, true, true, true}, []bool{flusher, hijacker, readerFrom, stringWriter})
		assert.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		_, err := io.Copy(w, strings.NewReader("from a reader"))
		assert.NoError(t, err)
		_, err = io.WriteString(w, " and a string")
		assert.NoError(t, err)
	})), func(t *testing.T, c *http.Client, base string) {
		rsp, err := c.Get(base)
		require.NoError(t, err)
		assert.Equal(t, "from a reader and a string", read(t, rsp))
	})
}

func TestMiddlewareHijack(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	addr := serve(t, Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := rw.ReadString('\n')
		say(conn, line)
	})))
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	r := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, 101, rsp.StatusCode)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "hello\n", line)
	assert.Equal(t, 101, (<-outcomes).Response.StatusCode)
}

func TestMiddlewareRejects(t *testing.T) {
	held, letGo := make(chan struct{}), make(chan struct{})
	h := Middleware(NewStack().Limit(1).Layer(), withErrorHeaders())(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		flush(w) // the head is out, and the slot is held still
		held <- struct{}{}
		<-letGo
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		first, err := c.Get(base)
		require.NoError(t, err)
		<-held
		second, err := c.Get(base)
		require.NoError(t, err)
		assert.Equal(t, 503, second.StatusCode)
		assert.Contains(t, second.Header.Get("L5d-Proxy-Error"), "1 of 1 in flight")
		assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rejected by limit"}`, read(t, second))
		letGo <- struct{}{}
		read(t, first)
	})
	assert.Contains(t, h.(layer.Describer).Describe().String(), "handler")
}

func TestMiddlewareTimeLimit(t *testing.T) {
	h := Middleware(NewStack().Timeout(20 * time.Millisecond).Layer())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			flush(w)
		}
		<-r.Context().Done()
		if r.URL.Path == "/own" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	each(t, func(t *testing.T, ctx context.Context, h2 bool, _ EndpointOption) {
		up := newHost(ctx, 0)
		up.srv.Handler = h
		c := client(t, h2)
		c.Transport.(*http.Transport).DialContext = up.network.DialContext
		const base = "http://10.0.0.1:80"
		for _, path := range []string{"/", "/own"} {
			rsp, err := c.Get(base + path)
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 504, rsp.StatusCode, path)
		}
		rsp, err := c.Get(base + "/begun")
		require.NoError(t, err)
		assert.Equal(t, 200, rsp.StatusCode)
		_, err = io.ReadAll(rsp.Body)
		require.Error(t, err, "the limit also applies to the body")
		rsp.Body.Close()
	})
}

func TestMiddlewareLayerResponses(t *testing.T) {
	answer := func(when func(path string) bool, rsp func(inner *http.Response) (*http.Response, error)) layer.Layer[*http.Request, *http.Response] {
		return func(next Service) Service {
			return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/instead" {
					return rsp(nil)
				}
				inner, err := next.Call(ctx, r)
				if err != nil || !when(r.URL.Path) {
					return inner, err
				}
				return rsp(inner)
			})
		}
	}
	l := answer(func(path string) bool { return path != "/" }, func(inner *http.Response) (*http.Response, error) {
		switch {
		case inner == nil:
			return &http.Response{StatusCode: 299, Header: http.Header{"X-By": {"a layer"}, "Connection": {"x"}}, ContentLength: -1,
				Body: io.NopCloser(strings.NewReader("instead")), Trailer: http.Header{"Sum": {"1"}}}, nil
		case inner.Request.URL.Path == "/replaced":
			_ = inner.Body.Close()
			return &http.Response{StatusCode: 299, Body: io.NopCloser(strings.NewReader("replaced")), ContentLength: -1}, nil
		}
		_ = inner.Body.Close()
		return nil, errors.New("odd")
	})
	h := Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/unwritten" {
			say(w, "handler")
			flush(w)
		}
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		rsp, err := c.Get(base + "/instead")
		require.NoError(t, err)
		assert.Equal(t, 299, rsp.StatusCode)
		assert.Equal(t, "a layer", rsp.Header.Get("X-By"))
		assert.Equal(t, "instead", read(t, rsp))
		assert.Equal(t, "1", rsp.Trailer.Get("Sum"))

		rsp, err = c.Get(base + "/replaced")
		require.NoError(t, err)
		assert.Equal(t, "replaced", read(t, rsp))

		for _, path := range []string{"/unwritten", "/written"} {
			rsp, err = c.Get(base + path)
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 500, rsp.StatusCode, path)
		}
	})
}

func TestMiddlewarePanic(t *testing.T) {
	limit := NewStack().Limit(1).Layer()
	h := Middleware(limit, WithLogger(nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("odd") }))
	for range 2 { // the slot came back
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		})
	}
}

// A layer may call the handler several times.
func TestMiddlewareRetries(t *testing.T) {
	runs := 0
	h := Middleware(func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			rsp, err := next.Call(ctx, r)
			if err != nil {
				return nil, err
			}
			_ = rsp.Body.Close()
			return next.Call(ctx, r)
		})
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusTeapot)
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, http.StatusTeapot, w.Code)
	assert.Equal(t, 2, runs)
}

// An invalid status is not that of the response, because the server panics. The handler may recover.
func TestMiddlewareInvalidStatus(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	h := Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.Panics(t, func() { w.WriteHeader(1000) })
		w.WriteHeader(http.StatusInternalServerError)
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Equal(t, http.StatusInternalServerError, (<-outcomes).Response.StatusCode)
}

// A response of a layer to CONNECT, instead of the handler, is sent.
func TestMiddlewareConnect(t *testing.T) {
	closed := make(chan bool, 1)
	for status, want := range map[int]int{403: 403, 407: 407, 200: http.StatusBadGateway} { // a 200 without a tunnel is invalid
		answers := func(Service) Service {
			return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: status, Header: http.Header{"X-Why": {"no"}}, Body: onClose(func() { closed <- true }), Request: r,
				}, nil
			})
		}
		c := wireTo(t, servingBy(t, Middleware(answers)(http.NotFoundHandler())).addr)
		say(c, strings.ReplaceAll(connectHead, "\n", "\r\n"))
		rsp, err := http.ReadResponse(c.in, &http.Request{Method: http.MethodConnect})
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, want, rsp.StatusCode)
		if want == status {
			assert.Equal(t, "no", rsp.Header.Get("X-Why"))
		}
		require.Eventually(t, func() bool { return len(closed) == 1 }, patience, time.Millisecond)
		<-closed
	}
}

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
		rsp := HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusOK})
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
	for tells, headers := range map[bool]HandlerOption{true: withErrorHeaders(), false: nil} {
		var logged strings.Builder
		h := Middleware(layers, headers, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))(http.NotFoundHandler())
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
		return HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusTeapot, Message: "inner"})
	}))(http.NotFoundHandler())
	for name, tt := range map[string]struct {
		outer  layer.Layer[*http.Request, *http.Response]
		status int
	}{
		"inner": {nil, http.StatusTeapot},
		"outer": {answeringBy(func(r *http.Request) *http.Response {
			return HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusForbidden, Message: "outer"})
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
				rsp := HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusOK})
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
				assert.Equal(t, [...]string{"400", "200"}[i], head.PseudoValue("status"))
			}
		})
	}
}

// formRequest is a POST of a file.
func formRequest(t testing.TB, url string) *http.Request {
	t.Helper()
	var body strings.Builder
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.txt")
	require.NoError(t, err)
	say(part, strings.Repeat("x", 1<<20))
	require.NoError(t, form.Close())
	req := request(t, http.MethodPost, url, body.String())
	req.Header.Set("Content-Type", form.FormDataContentType())
	return req
}

// relabelled is a layer that hands on a request of its own.
func relabelled(r *http.Request) *http.Request {
	out := fork(r)
	out.Header.Set("X-Label", "x")
	return out
}

// net/http stores files of a form on disk, and removes them by the request that
// it made, of which a handler may see a copy (golang/go#58809).
func TestFormFilesAreRemoved(t *testing.T) {
	logged := func(h http.Handler) http.Handler { return logged(h, io.Discard, JSONLog) }
	context := Middleware(NewStack().Timeout(time.Minute).Layer())
	edited := Middleware(NewStack().MapRequest(relabelled).Layer())
	byServer := func(t *testing.T, h http.Handler) string { return servingBy(t, h).addr }
	byOther := func(t *testing.T, h http.Handler) string { return serve(t, h) }
	for name, tt := range map[string]struct {
		served func(t *testing.T, h http.Handler) string
		wrap   func(http.Handler) http.Handler
	}{
		"AccessLog":                     {byOther, logged},
		"Middleware, context":           {byOther, context},
		"Middleware, request":           {byOther, edited},
		"Middleware, both":              {byOther, Middleware(NewStack().MapRequest(relabelled).Timeout(time.Minute).Layer())},
		"Server":                        {byServer, func(h http.Handler) http.Handler { return h }},
		"Server, AccessLog, Middleware": {byServer, func(h http.Handler) http.Handler { return logged(context(edited(h))) }},
	} {
		for version, two := range map[string]bool{"http1": false, "h2": true} {
			t.Run(name+" "+version, func(t *testing.T) {
				files := make(chan string, 1)
				addr := tt.served(t, tt.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					files <- formFile(t, r)
				})))
				rsp, err := client(t, two).Do(formRequest(t, "http://"+addr))
				require.NoError(t, err)
				read(t, rsp)
				file := <-files
				require.NotEmpty(t, file)
				assert.Eventually(t, func() bool { _, err := os.Stat(file); return os.IsNotExist(err) }, patience, time.Millisecond)
			})
		}
	}
}

// formFile has net/http keep the form on disk, and returns where.
func formFile(t *testing.T, r *http.Request) (name string) {
	if !assert.NoError(t, r.ParseMultipartForm(1)) {
		return ""
	}
	f, err := r.MultipartForm.File["f"][0].Open()
	if !assert.NoError(t, err) {
		return ""
	}
	defer f.Close()
	onDisk, ok := f.(*os.File)
	if !assert.True(t, ok) {
		return ""
	}
	return onDisk.Name()
}

// The files are removed after a panic, too.
func TestFormFilesRemovedAfterPanic(t *testing.T) {
	file := ""
	h := Middleware(NewStack().MapRequest(relabelled).Layer(), WithLogger(nil))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		file = formFile(t, r)
		panic("odd")
	}))
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(httptest.NewRecorder(), formRequest(t, "/")) })
	_, err := os.Stat(file)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// The parsed form of a received request remains, if a layer forwards a request without the form.
func TestFormOfReceivedRequestStays(t *testing.T) {
	received := formRequest(t, "/")
	formFile(t, received)
	form := received.MultipartForm
	another := func(*http.Request) *http.Request { return request(t, http.MethodGet, "/", "") }
	Middleware(NewStack().MapRequest(another).Layer())(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), received)
	assert.Same(t, form, received.MultipartForm)
	assert.NoError(t, form.RemoveAll())
}
