package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestRoundTripperClient(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		c := &http.Client{Transport: RoundTripper(endpoint(t, addr, protocol))}
		rsp, err := c.Post("http://web.default/echo", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.Equal(t, "web.default", rsp.Request.URL.Host)
		rsp, err = c.Get("http://web.default/what")
		require.NoError(t, err)
		assert.Contains(t, read(t, rsp), " GET web.default /what")
	})
}

func TestRoundTripperErrors(t *testing.T) {
	odd := errors.New("odd")
	for name, tt := range map[string]struct {
		svc  Service
		want error
	}{
		"refused": {serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, layer.ErrNotReady }), layer.ErrNotReady},
		"failed":  {serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, odd }), odd},
		"nothing": {serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, nil }), errNoResponse},
		"response with an error": {serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{}, odd
		}), odd},
	} {
		t.Run(name, func(t *testing.T) {
			req, body := withBody(t, "hello")
			before := req.Header.Clone()
			rsp, err := RoundTripper(tt.svc).RoundTrip(req)
			assert.Nil(t, rsp)
			assert.Equal(t, tt.want, err, "not as it is")
			assert.Zero(t, body.reads.Load())
			assert.EqualValues(t, 1, body.closes.Load())
			assert.Equal(t, before, req.Header)
		})
	}
	_, err := RoundTripper(endpoint(t, refusedAddr(t))).RoundTrip(request(t, "GET", "http://web/", ""))
	assert.ErrorIs(t, err, layer.ErrNotReady)
}

func TestRoundTripperContext(t *testing.T) {
	type key struct{}
	svc := serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: ctx.Value(key{}).(int)}, nil
	})
	ctx := context.WithValue(t.Context(), key{}, 299)
	rsp, err := RoundTripper(svc).RoundTrip(request(t, "GET", "http://web/", "").WithContext(ctx))
	require.NoError(t, err)
	assert.Equal(t, 299, rsp.StatusCode)
	b, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	assert.Empty(t, b)
}

type tripperFunc func(*http.Request) (*http.Response, error)

func (f tripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// roundTrippers are RoundTrippers as users write them.
var roundTrippers = map[string]func(next http.RoundTripper) http.RoundTripper{
	"same": func(next http.RoundTripper) http.RoundTripper { return next },
	"clone": func(next http.RoundTripper) http.RoundTripper {
		return tripperFunc(func(r *http.Request) (*http.Response, error) { return next.RoundTrip(r.Clone(r.Context())) })
	},
	"closes": func(next http.RoundTripper) http.RoundTripper {
		return tripperFunc(func(r *http.Request) (*http.Response, error) {
			rsp, err := next.RoundTrip(r)
			if err != nil && r.Body != nil {
				_ = r.Body.Close()
			}
			return rsp, err
		})
	},
}

func TestRoundTripperLayerConforms(t *testing.T) {
	for name, wrap := range roundTrippers {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
				Layer: RoundTripperLayer(wrap),
				Request: func(int) *http.Request {
					req, err := http.NewRequest(http.MethodPost, "http://web.test/", nil)
					if err != nil {
						panic(err)
					}
					return req
				},
				Response: func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
			})
		})
	}
}

// closable is a request body that records its close.
type closable struct {
	io.Reader
	closed int
}

func (c *closable) Close() error { c.closed++; return nil }

func TestRoundTripperLayerRejections(t *testing.T) {
	rejects := layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		return nil, &layer.Error{Layer: "limit", Kind: layer.ErrNotReady}
	})
	reads := func(next http.RoundTripper) http.RoundTripper {
		return tripperFunc(func(r *http.Request) (*http.Response, error) {
			_, _ = r.Body.Read(make([]byte, 1))
			return next.RoundTrip(r)
		})
	}
	for name, tt := range map[string]struct {
		wrap     func(http.RoundTripper) http.RoundTripper
		rejected bool
	}{
		"same": {roundTrippers["same"], true}, "clone": {roundTrippers["clone"], true}, "closes": {roundTrippers["closes"], true}, "reads": {reads, false},
	} {
		t.Run(name, func(t *testing.T) {
			body := &closable{Reader: strings.NewReader("text")}
			req, err := http.NewRequest(http.MethodPost, "http://web.test/", body)
			require.NoError(t, err)
			_, err = RoundTripperLayer(tt.wrap)(rejects).Call(t.Context(), req)
			require.Error(t, err)
			assert.Equal(t, tt.rejected, errors.Is(err, layer.ErrNotReady))
			assert.Equal(t, !tt.rejected, body.closed > 0, "closed")
		})
	}
}

func TestFromRoundTripper(t *testing.T) {
	type key struct{}
	svc := FromRoundTripper(tripperFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Value": {r.Context().Value(key{}).(string)}}}, nil
	}))
	req, err := http.NewRequest(http.MethodGet, "http://web.test/", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, svc.Ready(t.Context()))
	rsp, err := svc.Call(context.WithValue(t.Context(), key{}, "of Call"), req)
	require.NoError(t, err)
	assert.Equal(t, "of Call", rsp.Header.Get("Value"))
	assert.Panics(t, func() { FromRoundTripper(nil) })
	assert.Panics(t, func() { RoundTripperLayer(nil) })
	assert.Panics(t, func() {
		RoundTripperLayer(func(http.RoundTripper) http.RoundTripper { return nil })(svc)
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func TestTransport(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(shapes))
	defer server.Close()
	var closed bool
	below := &http.Transport{}
	idle := idleTripper{below, &closed}
	client := &http.Client{Transport: Transport(NewStack().Limit(1).Layer(), idle)}
	rsp, err := client.Get(server.URL + "/what")
	require.NoError(t, err)
	assert.Contains(t, read(t, rsp), " /what")
	client.CloseIdleConnections()
	assert.True(t, closed)
	assert.Contains(t, client.Transport.(layer.Describer).Describe().String(), "limit      in_flight=0 max=1\ntransport\n")
}

type idleTripper struct {
	*http.Transport
	closed *bool
}

func (i idleTripper) CloseIdleConnections() { *i.closed = true; i.Transport.CloseIdleConnections() }

func TestTransportContextAndErrors(t *testing.T) {
	type key struct{}
	odd := errors.New("odd")
	marks := func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			return next.Call(context.WithValue(ctx, key{}, "mark"), r)
		})
	}
	tr := Transport(marks, tripper(func(r *http.Request) (*http.Response, error) {
		assert.Equal(t, "mark", r.Context().Value(key{}))
		return nil, odd
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web/", nil)
	require.NoError(t, err)
	_, err = tr.RoundTrip(r)
	require.Equal(t, odd, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Transport(nil, nil).RoundTrip(r.WithContext(ctx))
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestAccessorDestinationAddr(t *testing.T) {
	var a HTTP
	incoming := &http.Request{RequestURI: "/"}
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("[::ffff:10.0.0.1]:80"))
	assert.Equal(t, "10.0.0.1:80", a.DestinationAddr(context.WithValue(t.Context(), http.LocalAddrContextKey, at), incoming).String())
	assert.False(t, a.DestinationAddr(t.Context(), incoming).IsValid())
	assert.False(t, a.DestinationAddr(t.Context(), &http.Request{}).IsValid())
	for in, want := range map[string]string{
		"http://10.0.0.1/": "10.0.0.1:80", "https://10.0.0.1/": "10.0.0.1:443",
		"http://[::1]:8080/": "[::1]:8080", "http://[::1]/": "[::1]:80", "http://web/": "invalid AddrPort", "http://web:80/": "invalid AddrPort",
	} {
		u, err := url.Parse(in)
		require.NoError(t, err)
		assert.Equal(t, want, a.DestinationAddr(t.Context(), &http.Request{URL: u}).String(), in)
	}
}
