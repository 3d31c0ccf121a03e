package httplayer

import (
	"bufio"
	"bytes"
	"context"
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
	out := Editor{}.EditRequest(req, layer.HeaderMutation{
		Add:    pairs("a", "2", "B", "3", "c", "2", "N", "1", "N", "2"),
		Set:    pairs("b", "4", "E", "1", "E", "2", "D", "2"),
		Remove: []string{"c", "d", "absent"},
	})
	assert.Equal(t, http.Header{"A": {"1", "2"}, "B": {"4"}, "E": {"2"}, "N": {"1", "2"}}, out.Header, "add, set, remove")
	assert.Equal(t, before, req, "the request is untouched")
	assert.Equal(t, req.Body, out.Body)
	assert.Same(t, req.URL, out.URL)
	assert.Same(t, req, Editor{}.EditRequest(req, layer.HeaderMutation{}))

	out = Editor{}.EditRequest(&http.Request{}, layer.HeaderMutation{Add: pairs("a", "1")})
	assert.Equal(t, http.Header{"A": {"1"}}, out.Header)
}

func TestEditRequestInPlace(t *testing.T) {
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header = http.Header{"A": {"1"}}
	out := Editor{InPlace: true}.EditRequest(req, layer.HeaderMutation{Add: pairs("a", "2"), Set: pairs("host", "other")})
	assert.Same(t, req, out)
	assert.Equal(t, http.Header{"A": {"1", "2"}}, req.Header)
	assert.Equal(t, "other", req.Host)
	req.Header = nil
	assert.Equal(t, http.Header{"A": {"1"}}, Editor{InPlace: true}.EditRequest(req, layer.HeaderMutation{Add: pairs("a", "1")}).Header)
}

func TestEditRequestAuthority(t *testing.T) {
	elsewhere := layer.HeaderMutation{Set: pairs("host", "other:81")}
	req := request(t, http.MethodGet, "http://web/a?b", "")
	out := Editor{}.EditRequest(req, elsewhere)
	assert.Equal(t, "other:81", Accessor{}.Authority(out))
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
	assert.Equal(t, "other:81", Accessor{}.Authority(Editor{}.EditRequest(req, elsewhere)))
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
			rsp, err := e.Call(t.Context(), Editor{}.EditRequest(req, layer.HeaderMutation{Remove: []string{"user-agent"}}))
			require.NoError(t, err)
			read(t, rsp)
			assert.Empty(t, <-agents)
		}
	}
}

func TestEditResponse(t *testing.T) {
	rsp := &http.Response{Header: http.Header{"Server": {"x"}, "Set-Cookie": {"a=1"}}}
	out := Editor{}.EditResponse(rsp, layer.HeaderMutation{
		Add: pairs("set-cookie", "b=2"), Set: pairs("x-a", "1"), Remove: []string{"server"},
	})
	assert.Same(t, rsp, out)
	assert.Equal(t, http.Header{"Set-Cookie": {"a=1", "b=2"}, "X-A": {"1"}}, out.Header)
	assert.Nil(t, Editor{}.EditResponse(&http.Response{}, layer.HeaderMutation{}).Header)
	assert.Equal(t, http.Header{"A": {"1"}}, Editor{}.EditResponse(&http.Response{}, layer.HeaderMutation{Add: pairs("a", "1")}).Header)
}

func TestNewResponse(t *testing.T) {
	answer := layer.DirectResponse{
		Status: 302, Message: "over there",
		Header: pairs("location", "http://x/", "Vary", "a", "Vary", "b", "content-length", "1"),
	}
	rsp := Editor{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), answer)
	assert.Equal(t, 302, rsp.StatusCode)
	assert.Equal(t, "302 Found", rsp.Status)
	assert.Equal(t, http.Header{
		"Location": {"http://x/"}, "Vary": {"a", "b"}, "Content-Length": {"10"},
		"Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"},
	}, rsp.Header)
	assert.EqualValues(t, 10, rsp.ContentLength)
	assert.Equal(t, "over there", read(t, rsp))

	rsp = Editor{}.NewResponse(request(t, http.MethodHead, "http://web/", ""), answer)
	assert.Equal(t, "10", rsp.Header.Get("Content-Length"))
	assert.Empty(t, read(t, rsp))

	rsp = Editor{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), layer.DirectResponse{Status: 204, Message: "nothing"})
	assert.Empty(t, rsp.Header)
	assert.Empty(t, read(t, rsp))

	rsp = Editor{}.NewResponse(request(t, http.MethodGet, "http://web/", ""), layer.DirectResponse{Status: 503})
	assert.Equal(t, http.Header{"Content-Length": {"0"}}, rsp.Header)
	for _, none := range []int{0, 100, 1000, -1} {
		assert.Equal(t, 500, Editor{}.NewResponse(&http.Request{}, layer.DirectResponse{Status: none}).StatusCode, none)
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
		Editor{}.NewResponse(req, layer.DirectResponse{Status: 503})
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
		rsp := Editor{}.NewResponse(req, layer.DirectResponse{Status: tt.status, GRPC: tt.code, Message: "50 % ü"})
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
	assert.Equal(t, 503, Editor{}.NewResponse(req, layer.DirectResponse{Status: 503}).StatusCode)
	req.ProtoMajor = 2
	assert.Equal(t, 200, Editor{}.NewResponse(req, layer.DirectResponse{Status: 503}).StatusCode)
}

// replying is a service that answers everything itself.
func replying(a layer.DirectResponse) Service {
	return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		return Editor{}.NewResponse(r, a), nil
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
		out := Editor{}.EditRequest(request(t, http.MethodGet, "http://web/", ""), c)
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
