package httplayer

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestAccessorRequest(t *testing.T) {
	fromServer := httptest.NewRequest("PUT", "/a%2Fb?q=1", nil)
	fromServer.Host, fromServer.RemoteAddr = "web.default", "[::ffff:10.1.2.3]:4567"
	byTLS := httptest.NewRequest("GET", "/", nil)
	byTLS.TLS = &tls.ConnectionState{}
	absolute := httptest.NewRequest("GET", "http://other:81/", nil)
	ours, err := http.NewRequest("", "https://web.default:8443/x y?q", nil)
	require.NoError(t, err)
	ours.Host = "virtual"
	bare := &http.Request{}
	for name, tt := range map[string]struct {
		req                             *http.Request
		method, scheme, authority, path string
		source                          string
	}{
		"server":      {fromServer, "PUT", "http", "web.default", "/a%2Fb", "10.1.2.3:4567"},
		"server, TLS": {byTLS, "GET", "https", "example.com", "/", "192.0.2.1:1234"},
		"absolute":    {absolute, "GET", "http", "other:81", "/", "192.0.2.1:1234"},
		"client":      {ours, "GET", "https", "web.default:8443", "/x%20y", "invalid AddrPort"},
		"star":        {&http.Request{Method: "OPTIONS", URL: &url.URL{Path: "*"}}, "OPTIONS", "http", "", "*", "invalid AddrPort"},
		"empty path":  {&http.Request{URL: &url.URL{Host: "web"}}, "GET", "http", "web", "/", "invalid AddrPort"},
		"connect":     {&http.Request{Method: "CONNECT", URL: &url.URL{Host: "web:443"}}, "CONNECT", "http", "web:443", "", "invalid AddrPort"},
		"bare":        {bare, "GET", "http", "", "", "invalid AddrPort"},
	} {
		t.Run(name, func(t *testing.T) {
			var a Accessor
			assert.Equal(t, tt.method, a.Method(tt.req))
			assert.Equal(t, tt.scheme, a.Scheme(tt.req))
			assert.Equal(t, tt.authority, a.Authority(tt.req))
			assert.Equal(t, tt.path, a.Path(tt.req))
			assert.Equal(t, tt.source, a.Source(tt.req).String())
			assert.Empty(t, a.RequestHeader(tt.req).Get("Host"))
		})
	}
	assert.Equal(t, "q=1", Accessor{}.Query(fromServer))
	assert.Empty(t, Accessor{}.Query(byTLS))
	assert.Empty(t, Accessor{}.Query(bare))
	assert.Equal(t, netip.AddrPort{}, Accessor{}.Source(&http.Request{RemoteAddr: "@"}), "a Unix socket")
}

func TestAccessorResponse(t *testing.T) {
	var a Accessor
	rsp := &http.Response{
		StatusCode: 418,
		Header:     http.Header{"X-Two": {"1", "2"}, "X-One": {"3"}},
		Trailer:    http.Header{"Announced": nil},
	}
	assert.Equal(t, 418, a.Status(rsp))
	assert.Equal(t, "1", a.ResponseHeader(rsp).Get("x-two"))
	values, ok := a.ResponseHeader(rsp).(interface{ Values(name string) []string })
	require.True(t, ok)
	assert.Equal(t, []string{"1", "2"}, values.Values("x-two"))
	var pairs []string
	for name, value := range a.ResponseHeader(rsp).All() {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	assert.Equal(t, []string{"X-One=3", "X-Two=1", "X-Two=2"}, pairs)
	for range a.ResponseHeader(rsp).All() {
		break
	}
	for name := range a.ResponseTrailer(rsp).All() {
		t.Errorf("%s has no value yet", name)
	}
	assert.Empty(t, a.ResponseTrailer(&http.Response{}).Get("x"))

	n := &noted{}
	a.Complete(t.Context(), &http.Response{StatusCode: 204}, n)
	assert.Equal(t, []error{nil}, n.ends)
}

func TestAccessorAllocations(t *testing.T) {
	var a layer.Accessor[*http.Request, *http.Response] = Accessor{}
	req := httptest.NewRequest("GET", "/path", nil)
	req.Header.Set("X", "y")
	rsp := &http.Response{Header: http.Header{"X": {"y"}}}
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = a.Method(req) + a.Scheme(req)[:0] + a.Authority(req)[:0] + a.Path(req)[:0]
		_ = a.Source(req)
		_ = a.Query(req)
		_ = a.RequestHeader(req).Get("X")
		_ = a.ResponseHeader(rsp).Get("X")
		_ = a.ResponseTrailer(rsp).Get("X")
	}))
}
