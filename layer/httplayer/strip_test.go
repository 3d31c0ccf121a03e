package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The layers that edit requests, each for an ordinary request and for one that it changes.
func TestStripLayersConform(t *testing.T) {
	for name, l := range map[string]Layer{
		"override authority": OverrideAuthority("other:80"),
		"no authority":       OverrideAuthority(""),
		"strip header":       StripHeader("l5d-dst-override", "X-Asked"),
	} {
		for _, asked := range []string{"", "X-Asked"} {
			t.Run(name+"/"+asked, func(t *testing.T) {
				layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
					Layer:       l,
					Transparent: name == "no authority" || name == "strip header" && asked == "",
					Request: func(int) *http.Request {
						req, err := http.NewRequest(http.MethodPost, "http://web.test/", nil)
						if err != nil {
							panic(err)
						}
						if asked != "" {
							req.Header.Set(asked, "1")
						}
						return req
					},
					Response: func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
				})
			})
		}
	}
}

// passed sends req through l, and returns what came out below.
func passed(t *testing.T, l layer.Layer[*http.Request, *http.Response], req *http.Request) (*http.Request, *http.Response, error) {
	t.Helper()
	var got *http.Request
	before := req.Header.Clone()
	rsp, err := l(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		got = r
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}, nil
	})).Call(t.Context(), req)
	assert.Equal(t, before, req.Header, "a request is not changed")
	return got, rsp, err
}

func TestOverrideAuthority(t *testing.T) {
	up, got := application(t, okAnswer)
	proxy := serve(t, Handler(OverrideAuthority("web.other.example:80")(endpoint(t, up))))
	for _, target := range []string{"/a", "http://web/a"} {
		first, _, _ := wireTo(t, proxy).ask("GET " + target + " HTTP/1.1\nHost: web\n\n")
		assert.Equal(t, "HTTP/1.1 200 OK", first)
		r := <-got
		assert.Equal(t, []string{"Host: web.other.example:80"}, r.fields)
		if target != "/a" {
			assert.Equal(t, "GET http://web.other.example:80/a HTTP/1.1", r.first)
		}
	}
}

func TestStripHeader(t *testing.T) {
	req := request(t, "GET", "http://web/", "")
	strip := StripHeader("l5d-dst-override", "x-b")
	got, _, err := passed(t, strip, req)
	require.NoError(t, err)
	assert.Same(t, req, got)
	req.Header = http.Header{"X-A": {"1"}, "X-B": {"2"}, "L5d-Dst-Override": {"a"}}
	got, _, err = passed(t, strip, req)
	require.NoError(t, err)
	assert.Equal(t, http.Header{"X-A": {"1"}}, got.Header)
}

// Trailers come with the end of a body: those that are stripped do not.
func TestLayersStripTrailers(t *testing.T) {
	for name, l := range map[string]layer.Layer[*http.Request, *http.Response]{
		"strip": StripHeader("l5d-client-id", "x-asked"),
		"two":   NewStack().With("id", StripHeader("l5d-client-id")).With("asked", StripHeader("x-asked")).Layer(),
	} {
		strips := func(t *testing.T, came, announced http.Header) {
			req, err := http.NewRequest(http.MethodPost, "http://web/", strings.NewReader("hello"))
			require.NoError(t, err)
			req.Trailer, req.Body = came, &trailing{req.Body, func() {
				came["L5d-Client-Id"], came["X-Sum"], came["X-More"] = []string{"root"}, []string{"1"}, []string{"2"}
			}}
			_, err = l(serviceFunc(func(_ context.Context, out *http.Request) (*http.Response, error) {
				require.Equal(t, announced, out.Trailer)
				body, err := io.ReadAll(out.Body)
				require.NoError(t, err)
				require.Equal(t, "hello", string(body))
				require.Equal(t, http.Header{"X-Sum": {"1"}, "X-More": {"2"}}, out.Trailer)
				return &http.Response{StatusCode: http.StatusOK}, out.Body.Close()
			})).Call(t.Context(), req)
			require.NoError(t, err)
			require.Contains(t, req.Trailer, "L5d-Client-Id", "a request is not changed")
		}
		t.Run(name+", announced", func(t *testing.T) {
			strips(t, http.Header{"L5d-Client-Id": nil, "X-Sum": nil}, http.Header{"X-Sum": nil})
		})
		t.Run(name+", not announced", func(t *testing.T) { strips(t, http.Header{}, http.Header{}) })
	}
}

// trailing is a body that calls end before it returns io.EOF.
type trailing struct {
	io.ReadCloser
	end func()
}

func (e *trailing) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil {
		e.end()
	}
	return n, err
}

// The server writes trailers while one attempt reads the body and the next one begins.
// Therefore each attempt has its own trailers, also if they are not announced.
func TestReplayTrailers(t *testing.T) {
	for name, came := range map[string]http.Header{"announced": {"X-A": nil, "X-B": nil}, "not announced": {}} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(http.MethodPut, "http://web/", io.NopCloser(strings.NewReader("hello")))
			require.NoError(t, err)
			announced := len(came)
			req.Trailer, req.Body = came, &trailing{req.Body, func() { came["X-A"], came["X-B"] = []string{"a"}, []string{"b"} }}
			attempts := HTTP{}.Replay(req, 1000)
			defer attempts.End()
			strip := StripHeader("x-a")
			for range 2 {
				attempt, ok := attempts.Next()
				require.True(t, ok)
				var got *http.Request
				_, err := strip(serviceFunc(func(_ context.Context, req *http.Request) (*http.Response, error) {
					got = req
					return nil, io.ErrUnexpectedEOF
				})).Call(t.Context(), attempt)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				attempt.Trailer["X-C"] = nil
				require.NotContains(t, came, "X-C")
				require.Len(t, got.Trailer, max(announced-1, 0))
				text, err := io.ReadAll(got.Body)
				require.NoError(t, err)
				require.Equal(t, "hello", string(text))
				require.Equal(t, []string{"b"}, got.Trailer["X-B"])
				require.NotContains(t, got.Trailer, "X-A")
			}
		})
	}
}

// A proxy forwards the trailers of requests. It drops unannounced trailers of gRPC requests
// only.
func TestServerRequestTrailers(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		w.Header()["Sum"] = r.Trailer["Sum"]
	})
	up := servingBy(t, h)
	retry := NewStack().Retry(RetryPolicy{Budget: layer.NewBudget(0, 0, 0)})
	addrs := map[string]string{
		"server":     up.addr,
		"middleware": servingBy(t, Middleware(NewStack().Timeout(time.Minute).Layer())(h)).addr,
		"h2 proxy":   servingBy(t, Handler(endpoint(t, up.addr, WithHTTP2()))).addr,
		"h1 proxy":   servingBy(t, Handler(endpoint(t, up.addr, WithHTTP1()))).addr,
		"retry":      servingBy(t, Handler(retry.Service(endpoint(t, up.addr, WithHTTP2())))).addr,
	}
	for name, addr := range addrs {
		for _, tt := range []struct {
			contentType string
			trailer     http.Header
			want        []string
		}{
			{"text/plain", http.Header{"Sum": nil}, []string{"44"}},
			{"text/plain", http.Header{}, []string{"44"}},
			{"application/grpc", http.Header{"Sum": nil}, []string{"44"}},
			{"application/grpc", http.Header{}, nil},
		} {
			req := request(t, http.MethodPut, "http://"+addr+"/", "")
			req.Header.Set("Content-Type", tt.contentType)
			req.ContentLength, req.Trailer = -1, tt.trailer
			req.Body = &trailing{io.NopCloser(strings.NewReader("hello")), func() { tt.trailer["Sum"] = []string{"44"} }}
			announced := len(tt.trailer)
			rsp, err := endpoint(t, addr, WithHTTP2()).Call(t.Context(), req)
			require.NoError(t, err)
			assert.Empty(t, read(t, rsp))
			assert.Equal(t, tt.want, rsp.Header["Sum"], "%s, %s, %d announced", name, tt.contentType, announced)
		}
	}
}
