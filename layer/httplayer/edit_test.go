package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

func pairs(nameAndValue ...string) []layer.HeaderField {
	var fields []layer.HeaderField
	for i := 0; i < len(nameAndValue); i += 2 {
		fields = append(fields, layer.HeaderField{Name: nameAndValue[i], Value: nameAndValue[i+1]})
	}
	return fields
}

func TestEditRequest(t *testing.T) {
	req := request(t, http.MethodPost, "http://web/a?b", "body")
	req.Header = http.Header{"A": {"1"}, "B": {"1", "2"}, "C": {"1"}, "D": {"1"}}
	before := req.Clone(t.Context())
	before.Body = req.Body
	out := HTTP{}.EditRequest(req, layer.HeaderMutation{
		Add:    pairs("a", "2", "B", "3", "c", "2", "N", "1", "N", "2"),
		Set:    pairs("b", "4", "E", "1", "E", "2", "D", "2"),
		Remove: []string{"c", "d", "absent"},
	})
	assert.Equal(t, http.Header{"A": {"1", "2"}, "B": {"4"}, "E": {"2"}, "N": {"1", "2"}}, out.Header, "add, set, remove")
	assert.Equal(t, before, req, "the request is untouched")
	assert.Equal(t, req.Body, out.Body)
	assert.Same(t, req.URL, out.URL)
	assert.Same(t, req, HTTP{}.EditRequest(req, layer.HeaderMutation{}))

	out = HTTP{}.EditRequest(&http.Request{}, layer.HeaderMutation{Add: pairs("a", "1")})
	assert.Equal(t, http.Header{"A": {"1"}}, out.Header)
}

func TestEditRequestInPlace(t *testing.T) {
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header = http.Header{"A": {"1"}}
	out := HTTP{InPlace: true}.EditRequest(req, layer.HeaderMutation{Add: pairs("a", "2"), Set: pairs("host", "other")})
	assert.Same(t, req, out)
	assert.Equal(t, http.Header{"A": {"1", "2"}}, req.Header)
	assert.Equal(t, "other", req.Host)
	req.Header = nil
	assert.Equal(t, http.Header{"A": {"1"}}, HTTP{InPlace: true}.EditRequest(req, layer.HeaderMutation{Add: pairs("a", "1")}).Header)
}

// Trailers that two edits remove do not arrive, although the first edit's body writes them to the request that the
// second one could change in place.
func TestEditRequestInPlaceTrailers(t *testing.T) {
	req := &http.Request{Method: http.MethodPut, ContentLength: -1, Trailer: http.Header{"A": nil, "B": nil, "C": nil}}
	req.Body = &ending{Reader: strings.NewReader("hello"), end: func() { req.Trailer = http.Header{"A": {"1"}, "B": {"2"}, "C": {"3"}} }}
	out := HTTP{}.EditRequest(req, layer.HeaderMutation{Remove: []string{"a"}})
	out = HTTP{InPlace: true}.EditRequest(out, layer.HeaderMutation{Remove: []string{"b"}})
	_, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	assert.Equal(t, http.Header{"C": {"3"}}, out.Trailer)
}

func TestEditRequestAuthority(t *testing.T) {
	elsewhere := layer.HeaderMutation{Set: pairs("host", "other:81")}
	req := request(t, http.MethodGet, "http://web/a?b", "")
	out := HTTP{}.EditRequest(req, elsewhere)
	assert.Equal(t, "other:81", HTTP{}.Authority(out))
	assert.Equal(t, "other:81", out.Host)
	assert.Equal(t, "http://other:81/a?b", out.URL.String())
	assert.Empty(t, out.Header)
	assert.Equal(t, "http://web/a?b", req.URL.String())
	assert.Equal(t, "web", req.Host)

	hosts := make(chan string, 1)
	e := endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host })))
	rsp, err := e.Call(t.Context(), out)
	require.NoError(t, err)
	read(t, rsp)
	assert.Equal(t, "other:81", <-hosts)

	req.URL.Host = "" // as a server has it
	assert.Equal(t, "other:81", HTTP{}.Authority(HTTP{}.EditRequest(req, elsewhere)))
}

// Without the header, net/http adds its own.
func TestEditRequestRemovesUserAgent(t *testing.T) {
	agents := make(chan []string, 1)
	addr := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { agents <- r.Header["User-Agent"] }))
	for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
		e := endpoint(t, addr, protocol)
		for _, agent := range []string{"", "curl"} {
			req := request(t, http.MethodGet, "http://web/", "")
			if agent != "" {
				req.Header.Set("User-Agent", agent)
			}
			rsp, err := e.Call(t.Context(), HTTP{}.EditRequest(req, layer.HeaderMutation{Remove: []string{"user-agent"}}))
			require.NoError(t, err)
			read(t, rsp)
			assert.Empty(t, <-agents)
		}
	}
}

func TestEditResponse(t *testing.T) {
	rsp := &http.Response{Header: http.Header{"Server": {"x"}, "Set-Cookie": {"a=1"}}}
	out := HTTP{}.EditResponse(rsp, layer.HeaderMutation{
		Add: pairs("set-cookie", "b=2"), Set: pairs("x-a", "1"), Remove: []string{"server"},
	})
	assert.Same(t, rsp, out)
	assert.Equal(t, http.Header{"Set-Cookie": {"a=1", "b=2"}, "X-A": {"1"}}, out.Header)
	assert.Nil(t, HTTP{}.EditResponse(&http.Response{}, layer.HeaderMutation{}).Header)
	assert.Equal(t, http.Header{"A": {"1"}}, HTTP{}.EditResponse(&http.Response{}, layer.HeaderMutation{Add: pairs("a", "1")}).Header)
}

func TestNewResponse(t *testing.T) {
	answer := layer.DirectResponse{
		Status: 302, Message: "over there",
		Header: pairs("location", "http://x/", "Vary", "a", "Vary", "b", "content-length", "1"),
	}
	rsp := HTTP{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), answer)
	assert.Equal(t, 302, rsp.StatusCode)
	assert.Equal(t, "302 Found", rsp.Status)
	assert.Equal(t, http.Header{
		"Location": {"http://x/"}, "Vary": {"a", "b"}, "Content-Length": {"10"},
		"Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"},
	}, rsp.Header)
	assert.EqualValues(t, 10, rsp.ContentLength)
	assert.Equal(t, "over there", read(t, rsp))

	rsp = HTTP{}.NewResponse(request(t, http.MethodHead, "http://web/", ""), answer)
	assert.Equal(t, "10", rsp.Header.Get("Content-Length"))
	assert.Empty(t, read(t, rsp))

	rsp = HTTP{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), layer.DirectResponse{Status: 204, Message: "nothing"})
	assert.Empty(t, rsp.Header)
	assert.Empty(t, read(t, rsp))

	rsp = HTTP{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), layer.DirectResponse{Status: 503})
	assert.Equal(t, http.Header{"Content-Length": {"0"}}, rsp.Header)
	for _, none := range []int{0, 100, 1000, -1} {
		assert.Equal(t, 500, HTTP{}.NewResponse(&http.Request{}, layer.DirectResponse{Status: none}).StatusCode, none)
	}
}

// closeTold records whether it was closed.
type closeTold struct {
	io.Reader
	closed bool
}

func (c *closeTold) Close() error { c.closed = true; return nil }

func TestNewResponseClosesOwnRequestBody(t *testing.T) {
	for _, own := range []bool{true, false} {
		body := &closeTold{Reader: strings.NewReader("unread")}
		req := request(t, http.MethodPost, "http://web/", "")
		req.Body = body
		if !own {
			req.RequestURI = "/"
		}
		HTTP{}.NewResponse(req, layer.DirectResponse{Status: 503})
		assert.Equal(t, own, body.closed)
		rest, err := io.ReadAll(body)
		require.NoError(t, err)
		assert.Equal(t, "unread", string(rest))
	}
}

func TestNewResponseGRPC(t *testing.T) {
	req := request(t, http.MethodPost, "http://web/s/m", "")
	req.Header.Set("Content-Type", "application/grpc+proto")
	for _, tt := range []struct {
		status     int
		code, want uint32
	}{
		{503, 0, 14}, {403, 0, 7}, {404, 0, 12}, {500, 0, 2}, {302, 0, 2}, {302, 5, 5}, {503, 9, 9},
	} {
		rsp := HTTP{}.NewResponse(req, layer.DirectResponse{Status: tt.status, GRPC: tt.code, Message: "50 % ü"})
		assert.Equal(t, 200, rsp.StatusCode)
		assert.Equal(t, 2, rsp.ProtoMajor)
		code, ok := grpcStatus(rsp, false)
		assert.True(t, ok)
		assert.Equal(t, tt.want, code)
		assert.Equal(t, "50 %25 %C3%BC", rsp.Header.Get("Grpc-Message"))
		assert.Equal(t, "application/grpc", rsp.Header.Get("Content-Type"))
		assert.NotContains(t, rsp.Header, "Content-Length")
		assert.Equal(t, http.NoBody, rsp.Body)
	}
	req.RequestURI = "/s/m" // a received request has a RequestURI
	assert.Equal(t, 503, HTTP{}.NewResponse(req, layer.DirectResponse{Status: 503}).StatusCode)
	req.ProtoMajor = 2
	assert.Equal(t, 200, HTTP{}.NewResponse(req, layer.DirectResponse{Status: 503}).StatusCode)
}

// replying is a service that answers everything itself.
func replying(a layer.DirectResponse) Service {
	return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		return HTTP{}.NewResponse(r, a), nil
	})
}

func TestE2ENewResponse(t *testing.T) {
	answer := layer.DirectResponse{Status: 302, Message: "over there", Header: pairs("Location", "http://x/")}
	handlers := map[string]http.Handler{
		"handler": Handler(replying(answer)),
		"middleware": Middleware(func(Service) Service { return replying(answer) })(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })),
	}
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, h)
			for _, h2 := range []bool{false, true} {
				c := client(t, h2)
				for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
					body := ""
					if method == http.MethodPost {
						body = strings.Repeat("x", 1000)
					}
					rsp, err := c.Do(request(t, method, "http://"+addr+"/a", body))
					require.NoError(t, err)
					assert.Equal(t, 302, rsp.StatusCode)
					assert.Equal(t, "http://x/", rsp.Header.Get("Location"))
					assert.EqualValues(t, 10, rsp.ContentLength, "%v %s", h2, method)
					text := read(t, rsp)
					assert.Equal(t, method != http.MethodHead, text == "over there")
				}
			}
		})
	}
}

// The response is sent while the client still sends its request body.
func TestE2ENewResponseBeforeRequestBody(t *testing.T) {
	answer := layer.DirectResponse{Status: 503, Message: "no"}
	for name, h := range map[string]http.Handler{
		"handler":    Handler(replying(answer)),
		"middleware": Middleware(func(Service) Service { return replying(answer) })(http.NotFoundHandler()),
	} {
		t.Run(name, func(t *testing.T) {
			addr := servingBy(t, h).addr
			pr, pw := io.Pipe()
			defer pw.Close()
			req := request(t, http.MethodPost, "http://"+addr+"/a", "")
			req.Body, req.ContentLength = pr, -1
			rsp, err := client(t, true).Do(req)
			require.NoError(t, err)
			assert.Equal(t, 503, rsp.StatusCode)
			assert.Equal(t, "no", read(t, rsp))

			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for range 2 { // the connection is reused
				say(conn, "POST /a HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
				rsp, err = http.ReadResponse(answers, nil)
				require.NoError(t, err)
				assert.Equal(t, 503, rsp.StatusCode)
				assert.Equal(t, "no", read(t, rsp))
				say(conn, "0\r\n\r\n")
			}
			say(conn, "GET /a HTTP/1.1\r\nHost: web\r\n\r\n")
			rsp, err = http.ReadResponse(answers, nil)
			require.NoError(t, err)
			assert.Equal(t, "no", read(t, rsp))
		})
	}
}

// A gRPC client receives a trailers-only response with the status. Added header fields are metadata.
func TestE2ENewResponseGRPC(t *testing.T) {
	answer := layer.DirectResponse{Status: 302, GRPC: 5, Message: "over ünder", Header: pairs("Location", "http://x/")}
	c := grpcClient(t, serve(t, Handler(replying(answer))))
	var trailer metadata.MD
	_, err := c.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.NotFound, status.Code(err))
	assert.Equal(t, "over ünder", status.Convert(err).Message())
	assert.Equal(t, []string{"http://x/"}, trailer["location"])
	assert.NotContains(t, trailer, "content-length")
}

// A valid field can be written, and is read as one field.
func FuzzEditRequest(f *testing.F) {
	f.Add("X-Team", "web")
	f.Add("x-a\r\nb", "c")
	f.Add("X-A", "1\r\nX-B: 2")
	f.Add("Host", "web:80")
	f.Fuzz(func(t *testing.T, name, value string) {
		c, _ := layer.HeaderMutation{Set: pairs(name, value)}.Valid()
		out := HTTP{}.EditRequest(request(t, http.MethodGet, "http://web/", ""), c)
		var wire bytes.Buffer
		require.NoError(t, out.Write(&wire))
		read, err := http.ReadRequest(bufio.NewReader(&wire))
		require.NoError(t, err)
		if strings.EqualFold(name, "host") && !c.Empty() {
			require.Equal(t, value, read.Host)
			return
		}
		require.Equal(t, "web", read.Host)
		read.Header.Del("User-Agent")
		if c.Empty() {
			require.Empty(t, read.Header)
		} else if !strings.EqualFold(name, "user-agent") {
			require.Equal(t, http.Header{http.CanonicalHeaderKey(name): {strings.Trim(value, " \t")}}, read.Header)
		}
	})
}

// copies takes what Fork gives.
type copies struct {
	calls int
	req   *http.Request
}

func (c *copies) whole(copied *http.Request, ok bool) {
	c.calls++
	if ok != (copied != nil) {
		panic("a copy without ok, or ok without a copy")
	}
	c.req = copied
}

func (c *copies) body(t *testing.T) string {
	t.Helper()
	require.NotNil(t, c.req)
	b, err := io.ReadAll(c.req.Body)
	require.NoError(t, err)
	return string(b)
}

func TestTeeRequestHeaders(t *testing.T) {
	gone := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://web:80/a?b=c", strings.NewReader("hello"))
	require.NoError(t, err)
	req.Host, req.RemoteAddr, req.Close, req.Cancel = "elsewhere", "10.0.0.1:7", true, gone //nolint:staticcheck // to see it go
	req.Header = http.Header{"Expect": {"100-continue"}, "A": {"b", "c"}}
	var c copies
	forked := HTTP{}.TeeRequest(req, 5, c.whole)
	_, err = io.Copy(io.Discard, forked.Body)
	require.NoError(t, err)
	cancel()

	got := c.req
	assert.Equal(t, http.MethodPut, got.Method)
	assert.Equal(t, "http://web:80/a?b=c", got.URL.String())
	assert.Equal(t, "elsewhere", got.Host)
	assert.Equal(t, "10.0.0.1:7", got.RemoteAddr)
	assert.Equal(t, http.Header{"A": {"b", "c"}}, got.Header)
	assert.EqualValues(t, 5, got.ContentLength)
	assert.False(t, got.Close)
	assert.Nil(t, got.GetBody)
	assert.Nil(t, got.Cancel) //nolint:staticcheck // as above
	assert.NoError(t, got.Context().Err())
	assert.Nil(t, got.Context().Done())

	got.Header.Set("A", "x")
	got.Header["A"][0] = "y"
	got.URL.Path = "/z"
	assert.Equal(t, http.Header{"Expect": {"100-continue"}, "A": {"b", "c"}}, req.Header)
	assert.Equal(t, "/a", req.URL.Path)
	assert.NotNil(t, forked.GetBody, "retries of the request get bodies as before")
	assert.True(t, forked.Close)
	assert.Same(t, ctx, forked.Context())
}

func TestTeeRequestWithoutBody(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"nil": nil, "no body": http.NoBody} {
		var c copies
		req := &http.Request{Method: http.MethodGet, Body: body}
		assert.Same(t, req, HTTP{}.TeeRequest(req, 0, c.whole), name)
		assert.Equal(t, 1, c.calls, name)
		require.NotNil(t, c.req, name)
		assert.Equal(t, body, c.req.Body, name)
	}
}

func TestTeeRequestTunnel(t *testing.T) {
	for name, req := range map[string]*http.Request{
		"connect": {Method: http.MethodConnect},
		"upgrade": {Method: http.MethodGet, Header: http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}},
	} {
		var c copies
		assert.Same(t, req, HTTP{}.TeeRequest(req, 1<<20, c.whole), name)
		assert.Equal(t, copies{calls: 1}, c, name)
	}
}

func TestTeeRequestBody(t *testing.T) {
	const limit = 8
	long := strings.Repeat("x", limit)
	all := func(b io.ReadCloser) { _, _ = io.Copy(io.Discard, b); _ = b.Close() }
	some := func(n int64) func(io.ReadCloser) {
		return func(b io.ReadCloser) { _, _ = io.CopyN(io.Discard, b, n); _ = b.Close() }
	}
	for name, tt := range map[string]struct {
		body   string
		length int64 // -1 and 0: unknown
		limit  int64
		read   func(io.ReadCloser)
		want   string // "" for none
	}{
		"the cap":                        {long, limit, limit, all, long},
		"the cap, in chunks":             {long, -1, limit, all, long},
		"the cap, of a client":           {long, 0, limit, all, long},
		"above it":                       {long + "x", limit + 1, limit, all, ""},
		"above it, in chunks":            {long + "x", -1, limit, all, ""},
		"nothing may be kept":            {"x", 1, 0, all, ""},
		"nothing may be kept, in chunks": {"x", -1, 0, all, ""},
		"shorter than it says":           {"abc", 4, limit, all, ""},
		"longer than it says":            {"abc", 2, limit, all, ""},
		"read as far as it says":         {"abc", 3, limit, some(3), "abc"},
		"read less far":                  {"abc", 3, limit, some(2), ""},
		"in chunks, without the end":     {"abc", -1, limit, some(3), ""},
		"not read":                       {"abc", 3, limit, some(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var c copies
			req := &http.Request{Method: http.MethodPut, Body: io.NopCloser(strings.NewReader(tt.body)), ContentLength: tt.length}
			tt.read(HTTP{}.TeeRequest(req, tt.limit, c.whole).Body)
			assert.Equal(t, 1, c.calls)
			if tt.want == "" {
				assert.Nil(t, c.req)
				return
			}
			assert.Equal(t, tt.want, c.body(t))
			assert.Equal(t, tt.length, c.req.ContentLength)
		})
	}
}

// The copy does not change when the caller reuses its buffers.
func TestTeeRequestBuffer(t *testing.T) {
	text := []byte("hello")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://web/", bytes.NewReader(text))
	require.NoError(t, err)
	var c copies
	forked := HTTP{}.TeeRequest(req, 100, c.whole)
	buf := make([]byte, 5)
	_, err = io.ReadFull(forked.Body, buf)
	require.NoError(t, err)
	_, err = forked.Body.Read(buf[:1])
	require.ErrorIs(t, err, io.EOF)
	copy(text, "XXXXX")
	copy(buf, "YYYYY")
	assert.Equal(t, "hello", c.body(t))
}

func TestTeeRequestTrailers(t *testing.T) {
	req := &http.Request{Method: http.MethodPut, ContentLength: -1, Trailer: http.Header{"Sum": nil}}
	req.Body = &ending{Reader: strings.NewReader("hello"), end: func() { req.Trailer.Set("Sum", "5") }}
	var c copies
	_, err := io.Copy(io.Discard, HTTP{}.TeeRequest(req, 100, c.whole).Body)
	require.NoError(t, err)
	assert.Equal(t, "hello", c.body(t))
	assert.Equal(t, http.Header{"Sum": {"5"}}, c.req.Trailer)
	req.Trailer.Set("Sum", "6")
	assert.Equal(t, http.Header{"Sum": {"5"}}, c.req.Trailer)
}

type ending struct {
	io.Reader
	end    func()
	closed bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		e.end()
	}
	return n, err
}

func (e *ending) Close() error {
	e.closed = true
	return errors.New("closed")
}

func TestTeeRequestCloseAndErrors(t *testing.T) {
	broken := errors.New("broken")
	body := &ending{Reader: io.MultiReader(strings.NewReader("ab"), brokenReader{broken}), end: func() {}}
	var c copies
	forked := HTTP{}.TeeRequest(&http.Request{Method: http.MethodPut, ContentLength: 5, Body: body}, 100, c.whole)
	got, err := io.ReadAll(forked.Body)
	assert.Equal(t, "ab", string(got))
	assert.Equal(t, broken, err)
	assert.False(t, body.closed)
	require.EqualError(t, forked.Body.Close(), "closed")
	assert.True(t, body.closed)
	assert.Equal(t, copies{calls: 1}, c)
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// Any body, read in any way, reaches its reader unchanged, and the copy equals it.
func FuzzTeeRequestBody(f *testing.F) {
	f.Add([]byte("hello"), int64(5), int64(8), 2)
	f.Add([]byte("hello"), int64(-1), int64(5), 1)
	f.Add([]byte(""), int64(-1), int64(0), 3)
	f.Fuzz(func(t *testing.T, text []byte, length, limit int64, piece int) {
		if piece < 1 || piece > 1<<10 || limit > 1<<20 || length < -1 {
			t.Skip()
		}
		var c copies
		req := &http.Request{Method: http.MethodPut, ContentLength: length, Body: io.NopCloser(bytes.NewReader(text))}
		forked := HTTP{}.TeeRequest(req, limit, c.whole)
		got, err := io.ReadAll(io.NewSectionReader(readerAt{forked.Body, piece}, 0, int64(len(text)+1)))
		require.NoError(t, err)
		require.Equal(t, string(text), string(got))
		fits := limit > 0 && int64(len(text)) <= limit && (length <= 0 || length == int64(len(text)))
		require.Equal(t, 1, c.calls)
		require.Equal(t, fits, c.req != nil)
		if fits {
			require.Equal(t, string(text), c.body(t))
		}
	})
}

// readerAt reads on in pieces, wherever it is asked to read.
type readerAt struct {
	io.Reader
	piece int
}

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return r.Read(p[:min(len(p), r.piece)]) }
