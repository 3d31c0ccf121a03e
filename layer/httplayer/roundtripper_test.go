package httplayer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
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
