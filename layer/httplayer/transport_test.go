package httplayer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

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
	var a Accessor
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

// Observers of another request, of another context, and after the response are not called.
func TestAccessorOnResponseStart(t *testing.T) {
	var a Accessor
	heard := 0
	hear := func(ctx context.Context, r *http.Request) {
		a.OnResponseStart(ctx, r, &hearing{t, &heard})
	}
	l := func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			other, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
			require.NoError(t, err)
			hear(ctx, other)
			hear(t.Context(), r)
			hear(ctx, r)
			rsp, err := next.Call(ctx, r)
			hear(ctx, r)
			return rsp, err
		})
	}
	h := Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hear(r.Context(), r)
		_, _ = w.Write([]byte("hello"))
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	assert.Equal(t, 6, heard, "once, and five bytes")
}

// hearing counts the notifications of a layer.ResponseObserver.
type hearing struct {
	t     *testing.T
	heard *int
}

func (h *hearing) ResponseStarted(*http.Response) { *h.heard++ }

func (h *hearing) ResponseData(n int, p []byte) {
	*h.heard += n
	require.Len(h.t, p, n)
}
