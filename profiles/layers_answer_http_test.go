package profiles_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

func pairs(nameAndValue ...string) []layer.HeaderField {
	var fields []layer.HeaderField
	for i := 0; i < len(nameAndValue); i += 2 {
		fields = append(fields, layer.HeaderField{Name: nameAndValue[i], Value: nameAndValue[i+1]})
	}
	return fields
}

// Forwarded requests are changed, equally in each attempt. The request of the caller is
// unchanged.
func TestRequestHeader(t *testing.T) {
	r, came := newWebRouter(t, retryable(func(r *profiles.Route) {
		r.Match = profiles.Header{Name: "X-Team", Value: profiles.Exact("web")}
		r.RequestHeader = layer.HeaderMutation{
			Add: pairs("x-team", "gateway"), Set: pairs("X-Added", "1", "user-agent", "gotower"), Remove: []string{"Cookie"},
		}
	}))
	req := streamed(t, "/?fails=2", strings.NewReader("hello"), 5)
	req.Header = http.Header{"X-Team": {"web"}, "Cookie": {"a=b"}, "User-Agent": {"curl"}}
	before := req.Header.Clone()
	rsp, err := r.Call(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Len(t, came(), 3)
	for _, try := range came() {
		assert.Equal(t, []string{"web", "gateway"}, try.header["X-Team"])
		assert.Equal(t, []string{"1"}, try.header["X-Added"])
		assert.Equal(t, []string{"gotower"}, try.header["User-Agent"])
		assert.NotContains(t, try.header, "Cookie")
		assert.Equal(t, "hello", try.body)
	}
	assert.Equal(t, before, req.Header)
}

// Responses are changed wherever they come from.
func TestResponseHeader(t *testing.T) {
	change := layer.HeaderMutation{Set: pairs("X-Frame-Options", "DENY"), Remove: []string{"Date", "Content-Type"}}
	for what, route := range map[string]profiles.Route{
		"a target's": {}, "a target's, judged": {Retry: &profiles.Retry{}},
		"a redirect": {Redirect: &profiles.Redirect{Scheme: "https"}}, "a fault": {Faults: []profiles.Fault{abort(1, 503)}},
	} {
		route.ResponseHeader = change
		p := one(route)
		p.RetryBudget = budget()
		r, _ := newWebRouter(t, p)
		rsp, err := r.Call(t.Context(), streamed(t, "/", nil, 0))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, "DENY", rsp.Header.Get("X-Frame-Options"), what)
		assert.NotContains(t, rsp.Header, "Date")
		assert.NotContains(t, rsp.Header, "Content-Type")
	}
}

// The header of a response is the caller's, while its end is still awaited, and
// judged, elsewhere.
func TestResponseHeaderOfStream(t *testing.T) {
	c := newCounters()
	p := retryable(func(r *profiles.Route) { r.ResponseHeader.Set = pairs("X-Frame-Options", "DENY") })
	r, _ := newGRPCRouter(t, profiles.Config{Metrics: c.instruments}, p, func(w http.ResponseWriter, r *http.Request, _ int64) {
		_, _ = io.Copy(io.Discard, r.Body)
		message(w, "hello")
		select {
		case <-time.After(2 * time.Millisecond): // longer than the trailers are waited for
		case <-r.Context().Done():
		}
		ends(w, "0")
	})
	for range 10 {
		rsp, err := r.Call(t.Context(), call(t, strings.NewReader("")))
		require.NoError(t, err)
		for range 1000 {
			rsp.Header.Set("X-Mine", "1")
		}
		_, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, "DENY", rsp.Header.Get("X-Frame-Options"))
	}
	assert.EqualValues(t, 10, of(c.tries.Responses, "success"))
}

// front is a gateway in front of a router. The targets of the router must not be called.
func front(t *testing.T, route profiles.Route) *httptest.Server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	source := newScript()
	r := profiles.New(ctx, profiles.Config{Target: target, Source: source}, httplayer.HTTP{}, func(string) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
			return httplayer.HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusTeapot}), nil
		})
	}, profiles.WithRouteLayers(httplayer.HTTP{}))
	source.send(one(route), nil)
	srv := httptest.NewUnstartedServer(httplayer.Handler(r))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(func() {
		srv.Close()
		cancel()
	})
	return srv
}

// ask sends bytes, and returns the response to them.
func ask(t *testing.T, srv *httptest.Server, method, wire string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, wire)
	require.NoError(t, err)
	rsp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	require.NoError(t, err)
	_, err = io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp
}

func TestRedirectRequestForms(t *testing.T) {
	moved := front(t, profiles.Route{Redirect: &profiles.Redirect{Scheme: "https", OldPrefix: "/v1", NewPrefix: "/v2", Status: 301}})
	for _, tt := range []struct {
		what, method, wire string
		status             int
		location           string
	}{
		{"Host", "GET", "GET /v1/a?b=c HTTP/1.1\r\nHost: web:8080\r\n\r\n", 301, "https://web/v2/a?b=c"},
		{"absolute form", "GET", "GET http://other:81/v1/a HTTP/1.1\r\nHost: web\r\n\r\n", 301, "https://other/v2/a"},
		{"IPv6", "GET", "GET /v1 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 301, "https://[::1]/v2"},
		{"two slashes", "GET", "GET //evil.com/%2e%2e HTTP/1.1\r\nHost: web\r\n\r\n", 301, "https://web//evil.com/%2e%2e"},
		{"HEAD", "HEAD", "HEAD /v1 HTTP/1.1\r\nHost: web\r\n\r\n", 301, "https://web/v2"},
		{"POST", "POST", "POST /v1 HTTP/1.1\r\nHost: web\r\nContent-Length: 5\r\n\r\nhello", 301, "https://web/v2"},
		{"HTTP/1.0", "GET", "GET /v1 HTTP/1.0\r\nHost: web\r\n\r\n", 301, "https://web/v2"},
		{"HTTP/1.0 without Host", "GET", "GET /v1 HTTP/1.0\r\n\r\n", 400, ""},
		{"an odd Host", "GET", "GET /v1 HTTP/1.1\r\nHost: a;b\r\n\r\n", 400, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			rsp := ask(t, moved, tt.method, tt.wire)
			assert.Equal(t, tt.status, rsp.StatusCode)
			assert.Equal(t, tt.location, rsp.Header.Get("Location"))
			assert.NotZero(t, rsp.ContentLength, "HEAD also has the length")
		})
	}
}

func TestRedirectHost(t *testing.T) {
	rsp := ask(t, front(t, profiles.Route{Redirect: &profiles.Redirect{Host: "b"}}), "GET", "GET /a HTTP/1.0\r\n\r\n")
	assert.Equal(t, "http://b/a", rsp.Header.Get("Location"))
}

// The answer to a gRPC request is a status in nothing but a header.
func TestRedirectAndFaultOfGRPC(t *testing.T) {
	for want, route := range map[string]profiles.Route{
		"5":  {Redirect: &profiles.Redirect{Host: "b"}},
		"14": {Faults: []profiles.Fault{abort(1, 503)}},
		"9":  {Faults: []profiles.Fault{{Fraction: 1, Status: 503, GRPC: 9, TTL: time.Hour}}},
	} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(tr.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front(t, route).URL+"/s/m", strings.NewReader("message"))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/grpc")
		rsp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, 200, rsp.StatusCode)
		assert.Equal(t, want, rsp.Header.Get("Grpc-Status"))
		assert.Empty(t, body)
		assert.Empty(t, rsp.Trailer)
	}
}
