package profiles_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

// received is what a backend saw of one try.
type received struct {
	body    string
	length  int64
	header  http.Header
	trailer http.Header
	url     string // the host and the path with its query
}

// newWebRouter returns a router over a real server, which answers with the status that
// the path specifies, until it was called as often as the query specifies.
func newWebRouter(t *testing.T, p *profiles.Profile) (*profiles.Router[*http.Request, *http.Response], func() []received) {
	t.Helper()
	var mu sync.Mutex
	var came []received
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		came = append(came, received{string(body), r.ContentLength, r.Header, r.Trailer, r.Host + r.RequestURI})
		n := len(came)
		mu.Unlock()
		switch fails, _ := strconv.Atoi(r.URL.Query().Get("fails")); {
		case r.URL.Path == "/reset" && n <= fails:
			panic(http.ErrAbortHandler)
		case n <= fails:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			_, _ = w.Write(body)
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	var source profiles.Static
	source.Set(target, p)
	config := profiles.Config{Target: target, Source: &source, InitialWait: time.Minute}
	r := profiles.New(ctx, config, httplayer.HTTP{}, func(string) httplayer.Service {
		return httplayer.NewEndpoint(ctx, srv.Listener.Addr().String())
	}, profiles.WithRouteLayers(httplayer.HTTP{}))
	t.Cleanup(func() {
		cancel()
		srv.Close()
	})
	return r, func() []received {
		mu.Lock()
		defer mu.Unlock()
		return came
	}
}

// streamed is a request with a body that is read once, as in a proxy.
func streamed(t *testing.T, url string, body io.Reader, length int64) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web"+url, io.NopCloser(body))
	require.NoError(t, err)
	req.ContentLength = length
	if length == 0 {
		req.Body = http.NoBody
	}
	return req
}

func TestRetryBody(t *testing.T) {
	const limit = 64 << 10
	long := strings.Repeat("x", limit)
	for _, tt := range []struct {
		what   string
		body   string
		length int64 // -1: chunks
		again  bool
	}{
		{"none", "", 0, true},
		{"small", "hello", 5, true},
		{"in chunks", "hello", -1, true},
		{"64 KiB", long, limit, true},
		{"64 KiB in chunks", long, -1, true},
		{"a byte more", long + "x", limit + 1, false},
		{"a byte more in chunks", long + "x", -1, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r, came := newWebRouter(t, retryable())
			rsp, err := r.Call(t.Context(), streamed(t, "/?fails=1", strings.NewReader(tt.body), tt.length))
			require.NoError(t, err)
			answer, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			tries := came()
			if !tt.again {
				assert.Equal(t, 500, rsp.StatusCode)
				assert.Len(t, tries, 1)
				assert.Len(t, tries[0].body, len(tt.body), "it is sent whole all the same")
				return
			}
			assert.Equal(t, 200, rsp.StatusCode)
			assert.True(t, bytes.Equal([]byte(tt.body), answer))
			require.Len(t, tries, 2)
			assert.Equal(t, tries[0], tries[1], "body, length and header of a retry are those of the request")
			assert.Equal(t, tt.length, tries[1].length)
		})
	}
}

func TestRetryTrailers(t *testing.T) {
	r, came := newWebRouter(t, retryable())
	req := streamed(t, "/?fails=1", strings.NewReader("hello"), -1)
	req.Trailer = http.Header{"X-Sum": {"42"}}
	rsp, err := r.Call(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Len(t, came(), 2)
	for _, try := range came() {
		assert.Equal(t, "42", try.trailer.Get("X-Sum"))
	}
}

// A failed connection is a 502 in linkerd, and so a failure.
func TestRetryOfResetConnection(t *testing.T) {
	r, came := newWebRouter(t, retryable())
	rsp, err := r.Call(t.Context(), streamed(t, "/reset?fails=2", strings.NewReader("hello"), 5))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, 200, rsp.StatusCode)
	assert.Len(t, came(), 3)
}

// The client gets the rejection of the retry as the cause, but not as a rejection,
// because the request was sent.
func TestRetryRejected(t *testing.T) {
	for kind, want := range map[error]int{layer.ErrNotReady: 503, layer.ErrClosed: 503, layer.ErrFailFast: 504} {
		first := true
		r, _ := serving(t, retryable(), func(context.Context, request) (*reply, error) {
			if first {
				first = false
				return &reply{status: 500}, nil
			}
			return nil, &layer.Error{Layer: "queue", Kind: kind}
		})
		_, err := r.Call(t.Context(), get)
		status, _ := httplayer.StatusFromError(err)
		assert.Equal(t, want, status, "%v", kind)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
	}
}

// A URL without a path is sent with the path "/".
func TestRouteEmptyPath(t *testing.T) {
	r, came := newWebRouter(t, retryable(func(r *profiles.Route) { r.Match = profiles.PathPrefix("/") }))
	rsp, err := r.Call(t.Context(), streamed(t, "?fails=1", strings.NewReader("hello"), 5))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, 200, rsp.StatusCode)
	assert.Len(t, came(), 2)
}

// The timeout ends with the head of a response.
func TestTimeoutExcludesBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		var network layertest.Network
		l, err := network.Listen("tcp", "10.0.0.1:80")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(2 * limit)
			_, _ = io.WriteString(w, "late")
		})}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var source profiles.Static
		source.Set(target, retryable(func(r *profiles.Route) { r.Timeout, r.Limit = limit, 1 }))
		config := profiles.Config{Target: target, Source: &source, InitialWait: time.Minute}
		r := profiles.New(ctx, config, httplayer.HTTP{}, func(string) httplayer.Service {
			return httplayer.NewEndpoint(ctx, "10.0.0.1:80", httplayer.WithDialContext(network.DialContext))
		}, profiles.WithRouteLayers(httplayer.HTTP{}))
		began := time.Now()
		rsp, err := r.Call(ctx, streamed(t, "/", strings.NewReader(""), 0))
		require.NoError(t, err)
		_, err = r.Call(ctx, streamed(t, "/", strings.NewReader(""), 0))
		require.ErrorContains(t, err, "1 of 1 in flight", "the limit holds to the end of the body")
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, "late", string(body))
		assert.Equal(t, 2*limit, time.Since(began))
	})
}
