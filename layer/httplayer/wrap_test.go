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
	"github.com/gotower/gotower/layer/layertest"
)

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
