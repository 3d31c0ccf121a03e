package tap

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

type httpLayer = layer.Layer[*http.Request, *http.Response]

type httpFunc = layer.Func[*http.Request, *http.Response]

// answered is a response of a layer, without a handler.
func answered(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusNonAuthoritativeInfo, Header: http.Header{"A": {"b"}}, Request: r,
		Body: io.NopCloser(strings.NewReader("hello")),
	}
}

// visit requests path of h, behind a Middleware with a tap between two layers,
// and returns the response.
func visit(t *testing.T, reg *Registry, above, below httpLayer, h http.Handler, path string) string {
	t.Helper()
	tapped := Layer(reg, httplayer.Accessor{}, Inbound)
	around := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return above(tapped(below(next)))
	}
	server := httptest.NewServer(httplayer.Middleware(around)(h))
	defer server.Close() // waits for the handler
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
	require.NoError(t, err)
	rsp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return string(body)
}

func nothingBetween(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
	return next
}

// A response that a layer returns in place of a handler is shown once.
func TestEarlyResponseOfLayer(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	answers := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(_ context.Context, r *http.Request) (*http.Response, error) { return answered(r), nil })
	}
	require.Equal(t, "hello", visit(t, reg, nothingBetween, answers, http.NotFoundHandler(), "/"))
	end := endOf(t, readAll(w))
	require.EqualValues(t, 5, end.Bytes)
	require.Equal(t, "hello", string(end.ResponseBody.Data))
}

// A response that a layer above returns in place of an error is not shown.
func TestEarlyResponseReplacesError(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	req := &tappb.WatchRequest{BodyBytes: 100, Fields: true}
	w := watchOn(t, reg, req)
	req.Response = &tappb.ResponseMatch{}
	held := watchOn(t, reg, req)
	fails := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(context.Context, *http.Request) (*http.Response, error) { return nil, errors.New("broken") })
	}
	consoles := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if _, err := next.Call(ctx, r); err == nil {
				return nil, errors.New("it did not fail")
			}
			return answered(r), nil
		})
	}
	require.Equal(t, "hello", visit(t, reg, consoles, fails, http.NotFoundHandler(), "/"))
	require.Equal(t, "qe", kinds(readAll(w)))
	require.Equal(t, "qe", kinds(readAll(held)))
	require.EqualValues(t, maxText, held.buf.Load().room.Load(), "what was kept back gave back what it took")
}

// Of two attempts, only the one that the handler served has its response.
func TestEarlyResponseAfterRejectedAttempt(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	calls := 0
	refusesOnce := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				return nil, layer.ErrNotReady
			}
			return next.Call(ctx, r)
		})
	}
	twice := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			if _, err := next.Call(ctx, r); !errors.Is(err, layer.ErrNotReady) {
				return nil, errors.New("it was not refused")
			}
			return next.Call(ctx, r)
		})
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	require.Equal(t, "hello", visit(t, reg, twice, refusesOnce, h, "/"))
	byStream := map[uint64][]Event{}
	for _, e := range readAll(w) {
		byStream[e.ID.Stream] = append(byStream[e.ID.Stream], e)
	}
	require.Equal(t, "qe", kinds(byStream[0]))
	require.Equal(t, "qre", kinds(byStream[1]))
	require.EqualValues(t, 5, byStream[1][2].ResponseEnd.Bytes)
}

// A file that the kernel copies is shown as a cut body.
func TestEarlyBodyCopiedByKernel(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello"), 0o600))
	require.Equal(t, "hello", visit(t, reg, nothingBetween, nothingBetween, http.FileServer(http.Dir(dir)), "/a.txt"))
	end := endOf(t, readAll(w))
	require.EqualValues(t, 5, end.Bytes)
	require.NotNil(t, end.ResponseBody)
	require.Empty(t, end.ResponseBody.Data)
	require.True(t, end.ResponseBody.Cut)

	copied := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "before ")
		_, _ = io.Copy(w, io.LimitReader(strings.NewReader("hello"), 5))
		_, _ = io.WriteString(w, " after")
	})
	require.Equal(t, "before hello after", visit(t, reg, nothingBetween, nothingBetween, copied, "/"))
	end = endOf(t, readAll(w))
	require.Equal(t, "before ", string(end.ResponseBody.Data))
	require.True(t, end.ResponseBody.Cut)
}

// A response that a layer above returns in place of a panic is not shown.
func TestEarlyResponseReplacesPanic(t *testing.T) {
	reg := new(Registry)
	w := watchOn(t, reg, &tappb.WatchRequest{})
	panics := func(layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(context.Context, *http.Request) (*http.Response, error) { panic("boom") })
	}
	recovers := func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
		return httpFunc(func(ctx context.Context, r *http.Request) (rsp *http.Response, err error) {
			defer func() {
				if recover() != nil {
					rsp, err = answered(r), nil
				}
			}()
			return next.Call(ctx, r)
		})
	}
	require.Equal(t, "hello", visit(t, reg, recovers, panics, http.NotFoundHandler(), "/"))
	require.Equal(t, "qe", kinds(readAll(w)))
}
