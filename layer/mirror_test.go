package layer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The request is served as without a mirror, regardless of the result of the copy: it
// does not wait and does not fail.
func TestMirrorKeepsOriginalRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		serve func(context.Context, *layertest.Request) (*layertest.Response, error)
		want  map[string]int64
	}{
		"answers": {nil, map[string]int64{"answered": 3}},
		"hangs": {func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}, map[string]int64{"in_flight": 3}},
		"fails": {func(context.Context, *layertest.Request) (*layertest.Response, error) {
			return nil, errors.New("down")
		}, map[string]int64{"failed": 3}},
		"is not ready": {func(context.Context, *layertest.Request) (*layertest.Response, error) {
			return nil, &layer.Error{Layer: "queue", Kind: layer.ErrFailFast}
		}, map[string]int64{"rejected": 3}},
		"panics": {func(context.Context, *layertest.Request) (*layertest.Response, error) {
			panic("down")
		}, map[string]int64{"failed": 3}},
		"answers without an end": {func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			r, _ := io.Pipe()
			return &layertest.Response{Body: r}, nil
		}, map[string]int64{"in_flight": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			mirrorShared(t, func(t *testing.T, life context.Context) {
				to := &copyTarget{serve: tt.serve}
				svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(reads))
				began := time.Now()
				for range 3 {
					ask(t, svc, withText("hello"))
				}
				require.Zero(t, time.Since(began))
				synctest.Wait()
				require.Equal(t, []string{"hello", "hello", "hello"}, to.bodies())
				require.Equal(t, tt.want, outcomes(svc))
			})
		})
	}
}

func TestMirrorEndlessResponse(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		r, w := io.Pipe()
		to := &copyTarget{serve: func(context.Context, *layertest.Request) (*layertest.Response, error) {
			return &layertest.Response{Body: r}, nil
		}}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(reads))
		ask(t, svc, withText(""))
		time.Sleep(time.Second)
		require.Equal(t, map[string]int64{"answered": 1}, outcomes(svc))
		_, err := w.Write([]byte("x"))
		require.ErrorIs(t, err, io.ErrClosedPipe)
	})
}

// A copy is sent only if the body was read to its end and fits the limit.
func TestMirrorBody(t *testing.T) {
	const limit = 8
	long := strings.Repeat("x", limit)
	broken := errors.New("broken")
	half := func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
		_, _ = io.CopyN(io.Discard, req.Body, 1)
		_ = req.Body.Close()
		return &layertest.Response{}, nil
	}
	leaves := func(context.Context, *layertest.Request) (*layertest.Response, error) {
		return &layertest.Response{}, nil
	}
	for name, tt := range map[string]struct {
		body  io.Reader
		limit int64
		inner kitFunc
		want  []string
	}{
		"none":                   {nil, limit, reads, []string{""}},
		"none is all there is":   {nil, -1, reads, []string{""}},
		"empty":                  {strings.NewReader(""), limit, reads, []string{""}},
		"exactly the cap":        {strings.NewReader(long), limit, reads, []string{long}},
		"one above":              {strings.NewReader(long + "x"), limit, reads, []string{}},
		"in pieces":              {io.MultiReader(strings.NewReader("ab"), strings.NewReader("cd")), limit, reads, []string{"abcd"}},
		"in pieces, one above":   {io.MultiReader(strings.NewReader(long), strings.NewReader("x")), limit, reads, []string{}},
		"nothing may be kept":    {strings.NewReader("x"), -1, reads, []string{}},
		"broken off":             {io.MultiReader(strings.NewReader("ab"), failing{broken}), limit, reads, []string{}},
		"closed early":           {strings.NewReader("ab"), limit, half, []string{}},
		"not read, not closed":   {strings.NewReader("ab"), limit, leaves, []string{}},
		"the default is 64 KiB":  {strings.NewReader(strings.Repeat("x", 64<<10)), 0, reads, []string{strings.Repeat("x", 64<<10)}},
		"one above the default":  {strings.NewReader(strings.Repeat("x", 64<<10+1)), 0, reads, []string{}},
		"the end with the bytes": {&atOnce{"ab"}, limit, reads, []string{"ab"}},
	} {
		t.Run(name, func(t *testing.T) {
			mirrorShared(t, func(t *testing.T, life context.Context) {
				to := &copyTarget{}
				svc := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxBodyBytes: tt.limit})(tt.inner)
				req := &layertest.Request{}
				if tt.body != nil {
					req.Body = io.NopCloser(tt.body)
				}
				_, err := svc.Call(t.Context(), req)
				if name == "broken off" {
					require.Equal(t, broken, err, "the error is the primary's own")
				}
				synctest.Wait()
				require.Equal(t, tt.want, to.bodies())
			})
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// atOnce is a body that returns io.EOF with its last bytes.
type atOnce struct{ text string }

func (a *atOnce) Read(p []byte) (int, error) {
	n := copy(p, a.text)
	a.text = a.text[n:]
	if a.text == "" {
		return n, io.EOF
	}
	return n, nil
}

// If the response headers arrive before the end of the request body, the copy is sent at
// the end of the request body.
func TestMirrorBodyAfterResponse(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		var body io.ReadCloser
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
				body = req.Body
				return &layertest.Response{}, nil
			}))
		_, err := svc.Call(t.Context(), withText("late"))
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, to.bodies())
		_, err = io.ReadAll(body)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []string{"late"}, to.bodies())
	})
}

func TestMirrorRejectedRequest(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		mock := layertest.NewMock[*layertest.Request, *layertest.Response]()
		mock.Serve(reads)
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(mock)
		for i, req := range []*layertest.Request{{}, withText("hello")} {
			_, err := svc.Call(t.Context(), req)
			require.ErrorIs(t, err, layer.ErrNotReady)
			synctest.Wait()
			require.Len(t, to.bodies(), i)
			mock.Allow(1)
			ask(t, svc, req) // the same one again
		}
		synctest.Wait()
		require.Equal(t, []string{"", "hello"}, to.bodies())
	})
}

// A request that inner failed is copied as well.
func TestMirrorFailedRequest(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		down := errors.New("down")
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(context.Context, *layertest.Request) (*layertest.Response, error) { return nil, down }))
		_, err := svc.Call(t.Context(), &layertest.Request{})
		require.Equal(t, down, err)
		synctest.Wait()
		require.Len(t, to.bodies(), 1)
	})
}

func TestMirrorAboveRetry(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to, tries := &copyTarget{}, 0
		svc := layer.NewStack[*layertest.Request](layer.WithClassifier(failuresAgain[*layertest.Response])).
			Mirror(life, to, forking{}, mirrorPolicy{}).
			Retry(layer.RetryPolicy[*layertest.Request, *layertest.Response]{
				MaxAttempts: 3, CanRetry: func(*layertest.Request) bool { return true },
			}).
			Service(kitFunc(func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
				if tries++; tries < 3 {
					_, _ = io.CopyN(io.Discard, req.Body, 2)
					return nil, errServer
				}
				return reads(ctx, req)
			}))
		ask(t, svc, withText("hello"))
		synctest.Wait()
		require.Equal(t, 3, tries)
		require.Equal(t, []string{"hello"}, to.bodies())
	})
}
