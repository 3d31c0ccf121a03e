package httplayer

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestGatewayLayersConform(t *testing.T) {
	for name, l := range map[string]Layer{
		"forwarded": Forwarded(netip.MustParsePrefix("10.0.0.0/8")), "rate_by_client": RateLimitByClient(1e9, 1e9), "sticky": StickySession("node"),
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
				Layer: l,
				Request: func(int) *http.Request {
					req, err := http.NewRequest(http.MethodPost, "http://web.test/", nil)
					if err != nil {
						panic(err)
					}
					req.RemoteAddr = "10.0.0.1:5000"
					return req
				},
				Response:         func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
				RewritesMessages: name == "forwarded",
			})
		})
	}
}

func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, tt := range map[string]struct {
		peer   string
		sent   http.Header
		want   http.Header
		client string
	}{
		"none": {
			"192.0.2.1:5000", nil,
			http.Header{
				"X-Forwarded-For": {"192.0.2.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"web.test:8080"},
				"Forwarded": {`for=192.0.2.1;host="web.test:8080";proto=http`},
			},
			"192.0.2.1",
		},
		"forged": {
			"192.0.2.1:5000",
			http.Header{
				"X-Forwarded-For": {"1.1.1.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Port": {"1"}, "X-Real-Ip": {"1.1.1.1"},
				"Forwarded": {"for=1.1.1.1"}, "X_forwarded_for": {"1.1.1.1"}, "Accept": {"*/*"},
			},
			http.Header{
				"X-Forwarded-For": {"192.0.2.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"web.test:8080"},
				"Forwarded": {`for=192.0.2.1;host="web.test:8080";proto=http`}, "Accept": {"*/*"},
			},
			"192.0.2.1",
		},
		"trusted": {
			"[fd00::1]:5000",
			http.Header{
				"X-Forwarded-For": {"1.1.1.1, 192.0.2.7", "10.1.1.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"shop.test"},
				"Forwarded": {"for=192.0.2.7"},
			},
			http.Header{
				"X-Forwarded-For": {"1.1.1.1, 192.0.2.7, 10.1.1.1, fd00::1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"shop.test"},
				"Forwarded": {`for=192.0.2.7, for="[fd00::1]";host="web.test:8080";proto=http`},
			},
			"192.0.2.7",
		},
		"trusted and malformed": {
			"10.0.0.1:5000", http.Header{"X-Forwarded-For": {"1.1.1.1, unknown, 10.0.0.2"}},
			http.Header{
				"X-Forwarded-For": {"1.1.1.1, unknown, 10.0.0.2, 10.0.0.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"web.test:8080"},
				"Forwarded": {`for=10.0.0.1;host="web.test:8080";proto=http`},
			},
			"10.0.0.2",
		},
		"no address": {
			"@", nil,
			http.Header{
				"X-Forwarded-For": {"unknown"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"web.test:8080"},
				"Forwarded": {`for=unknown;host="web.test:8080";proto=http`},
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "http://web.test:8080/", http.NoBody)
			req.RemoteAddr, req.Header = tt.peer, tt.sent.Clone()
			var got *http.Request
			ctx, record := layer.WithRecord(t.Context())
			_, err := Forwarded(trusted...)(layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
				got = r
				assert.Equal(t, ClientFromContext(ctx), ClientFromContext(r.Context()))
				return &http.Response{}, nil
			})).Call(ctx, req)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got.Header)
			assert.Equal(t, tt.sent, req.Header, "the request of the caller")
			var client netip.Addr
			if tt.client != "" {
				client = netip.MustParseAddr(tt.client)
			}
			assert.Equal(t, client, ClientFromContext(got.Context()))
			assert.Equal(t, client, record.Facts().Client)
		})
	}
}

// The protocol is that of the connection to the Server. A client cannot choose it by an absolute target.
func TestForwardedProto(t *testing.T) {
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	for want, tt := range map[string]struct {
		conn   net.Conn
		target string
	}{
		"http":  {conn, "https://web.test/"},
		"https": {tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS12}), "http://web.test/"},
	} {
		req := httptest.NewRequestWithContext(context.WithValue(t.Context(), connKey{}, tt.conn), http.MethodGet, tt.target, nil)
		req.TLS = nil // as by a Server
		_, err := Forwarded()(serviceFunc(func(_ context.Context, out *http.Request) (*http.Response, error) {
			assert.Equal(t, []string{want}, out.Header["X-Forwarded-Proto"])
			assert.Contains(t, out.Header.Get("Forwarded"), ";proto="+want)
			return &http.Response{StatusCode: http.StatusOK}, nil
		})).Call(req.Context(), req)
		require.NoError(t, err)
	}
}

func TestRateLimitByClient(t *testing.T) {
	front := NewStack().With("forwarded", Forwarded(netip.MustParsePrefix("10.0.0.0/8"))).With("rate_by", RateLimitByClient(1e-9, 1))
	h := Middleware(front.Layer(), WithLogger(nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, tt := range []struct {
		peer, client string
		status       int
	}{
		{"192.0.2.1:1", "", 200},
		{"192.0.2.1:2", "", 429},
		{"192.0.2.2:1", "192.0.2.9", 200}, // forged
		{"192.0.2.2:1", "192.0.2.8", 429},
		{"10.0.0.1:1", "192.0.2.3", 200},
		{"10.0.0.2:1", "192.0.2.3", 429},
		{"[2001:db8::1]:1", "", 200},
		{"[2001:db8::2]:1", "", 429}, // the same /64
		{"[2001:db8:0:1::1]:1", "", 200},
	} {
		req, rec := httptest.NewRequest(http.MethodGet, "http://web.test/", http.NoBody), httptest.NewRecorder()
		req.RemoteAddr = tt.peer
		if tt.client != "" {
			req.Header.Set("X-Forwarded-For", tt.client)
		}
		h.ServeHTTP(rec, req)
		assert.Equal(t, tt.status, rec.Code, "%+v", tt)
	}
}

func TestStickySession(t *testing.T) {
	var keys []uint64
	svc := StickySession("node")(layer.Func[*http.Request, *http.Response](func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		keys = append(keys, layer.PickInfoFromContext(ctx).Affinity)
		return &http.Response{StatusCode: http.StatusOK}, nil
	}))
	call := func(url, cookie string) *http.Response {
		req := httptest.NewRequest(http.MethodGet, url, http.NoBody)
		if cookie != "" {
			req.Header.Set("Cookie", cookie)
		}
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		return rsp
	}
	first := call("http://web.test/", "").Cookies()
	require.Len(t, first, 1)
	assert.True(t, first[0].HttpOnly)
	assert.False(t, first[0].Secure)
	assert.Empty(t, call("http://web.test/", "a=b; node="+first[0].Value).Cookies())
	assert.Equal(t, keys[0], keys[1])
	for _, cookie := range []string{"", "node=x", "node="} {
		again := call("https://web.test/", cookie).Cookies()
		require.Len(t, again, 1, cookie)
		assert.True(t, again[0].Secure)
		assert.NotEqual(t, first[0].Value, again[0].Value)
	}
	assert.Panics(t, func() { StickySession("a b") })
}

// A server that merges trailers into headers must not see those of an untrusted peer.
func TestForwardedTrailers(t *testing.T) {
	l := Forwarded(netip.MustParsePrefix("10.0.0.0/8"))
	for peer, want := range map[string]http.Header{
		"192.0.2.1:5000": {"X-Sum": {"1"}},
		"10.0.0.1:5000":  {"X-Sum": {"1"}, "X-Forwarded-For": {"1.1.1.1"}},
	} {
		req, err := http.NewRequest(http.MethodPost, "http://web/", strings.NewReader("hello"))
		require.NoError(t, err)
		came := make(http.Header)
		req.RemoteAddr, req.Trailer = peer, came
		req.Body = &trailing{req.Body, func() { came["X-Sum"], came["X-Forwarded-For"] = []string{"1"}, []string{"1.1.1.1"} }}
		_, err = l(serviceFunc(func(_ context.Context, out *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(out.Body)
			require.NoError(t, err)
			assert.Equal(t, "hello", string(body))
			assert.Equal(t, want, out.Trailer)
			return &http.Response{StatusCode: http.StatusOK}, out.Body.Close()
		})).Call(t.Context(), req)
		require.NoError(t, err)
	}
}

// Most names that a browser sends begin with a letter of the removed ones, and must not cost an allocation each.
func TestForwardedNamesWithoutAllocations(t *testing.T) {
	names := []string{"Content-Type", "Cookie", "Connection", "Cache-Control", "Sec-Fetch-Mode", "Sec-Ch-Ua", "X-Requested-With", "From"}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for _, name := range names {
			if isForwarded(name) {
				t.Error(name)
			}
		}
	}))
}
