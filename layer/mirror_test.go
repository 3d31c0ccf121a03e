package layer_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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

// HTTP/2 closes a body while it is being read.
func TestTeeBodyClosedDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var got []bool
		body := layer.TeeBody(r, -1, 100, func(_ []byte, ok bool) { got = append(got, ok) })
		ended := make(chan error)
		go func() {
			_, err := io.ReadAll(body)
			ended <- err
		}()
		_, err := w.Write([]byte("hello"))
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, got)
		require.NoError(t, body.Close())
		require.ErrorIs(t, <-ended, io.ErrClosedPipe)
		require.NoError(t, body.Close())
		require.Equal(t, []bool{false}, got)
	})
}

// The first of Read and Close ends the body, once.
func TestTeeBodyEndsOnce(t *testing.T) {
	for range 200 {
		var calls atomic.Int32
		body := layer.TeeBody(io.NopCloser(strings.NewReader("hello")), -1, 100, func(kept []byte, ok bool) {
			calls.Add(1)
			if ok && string(kept) != "hello" || !ok && kept != nil {
				panic("kept " + string(kept))
			}
		})
		var group sync.WaitGroup
		group.Go(func() { _, _ = io.Copy(io.Discard, body) })
		group.Go(func() { _ = body.Close() })
		group.Wait()
		require.EqualValues(t, 1, calls.Load())
	}
}

// The results of a faulty reader are passed unchanged, and no copy is made.
func TestTeeBodyFaultyReader(t *testing.T) {
	odd := errors.New("odd")
	for _, n := range []int{-1, 9} {
		body := layer.TeeBody(oddReader{n, odd}, -1, 100, func(kept []byte, ok bool) { require.False(t, ok) })
		got, err := body.Read(make([]byte, 4))
		require.Equal(t, n, got)
		require.Equal(t, odd, err)
		require.NoError(t, body.Close())
	}
}

type oddReader struct {
	n   int
	err error
}

func (o oddReader) Read([]byte) (int, error) { return o.n, o.err }
func (oddReader) Close() error               { return nil }

// The body of a request that is not copied is not kept.
func TestMirrorWithoutCopyStoresNothing(t *testing.T) {
	mirrorShared(t, func(t *testing.T, _ context.Context) {
		life, cancel := context.WithCancel(t.Context())
		defer cancel()
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		edit := &counting{}
		svc := layer.Mirror(life, to, edit, mirrorPolicy{MaxInFlight: 1})(kitFunc(reads))
		ask(t, svc, withText("sent"))
		synctest.Wait()
		ask(t, svc, withText("no room"))
		require.Equal(t, 1, edit.forks)
		cancel()
		synctest.Wait()
		ask(t, svc, withText("too late"))
		require.Equal(t, 1, edit.forks)
	})
}

type counting struct {
	forking
	forks int
}

func (c *counting) TeeRequest(req *layertest.Request, limit int64, whole func(*layertest.Request, bool)) *layertest.Request {
	c.forks++
	return c.forking.TeeRequest(req, limit, whole)
}

func TestMirrorFraction(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{
			Match:    func(req *layertest.Request) bool { return req.ID%2 == 0 },
			Fraction: 0.25, Rand: turns(0.2, 0.25, 0.5, 0.9),
		})(kitFunc(reads))
		for i := range 16 {
			ask(t, svc, &layertest.Request{ID: i})
		}
		synctest.Wait()
		require.Len(t, to.bodies(), 2)
	})
}

func TestMirrorMaxInFlight(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		free := make(chan struct{})
		to := &copyTarget{serve: func(context.Context, *layertest.Request) (*layertest.Response, error) {
			<-free
			return &layertest.Response{}, nil
		}}
		l := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 2})
		one, other := l(kitFunc(reads)), l(kitFunc(reads)) // which share it
		for range 3 {
			ask(t, one, withText("hello"))
			ask(t, other, withText("hello"))
		}
		synctest.Wait()
		require.Len(t, to.bodies(), 2)
		require.Equal(t, map[string]int64{"in_flight": 2, "full": 4}, outcomes(one))
		close(free)
		synctest.Wait()
		ask(t, one, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"answered": 3, "full": 4}, outcomes(other))
	})
}

func TestMirrorMetrics(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		var err error
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			if errors.Is(err, context.Canceled) {
				<-ctx.Done()
			}
			return &layertest.Response{}, err
		}}
		mirrored := byLabel{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 1, MaxBodyBytes: 4},
			layer.WithMetrics[*layertest.Response](layer.Instruments{Mirrored: mirrored}))(kitFunc(reads))
		for i, label := range []string{"answered", "failed", "rejected", "skipped", "full"} {
			err = []error{nil, errServer, layer.ErrNotReady, nil, context.Canceled}[i]
			if label == "full" {
				ask(t, svc, withText("hi"))
				synctest.Wait()
			}
			ask(t, svc, withText(map[bool]string{true: "too long", false: "hi"}[label == "skipped"]))
			synctest.Wait()
			require.EqualValues(t, 1, *mirrored[label], label)
			require.EqualValues(t, 1, layer.Describe(svc).State.Get(label), label)
		}
	})
}

// Copies with request bodies that end at the same time are counted when they are sent.
func TestMirrorMaxInFlightConcurrent(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		wait := make(chan struct{})
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 2})(kitFunc(
			func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
				<-wait
				return reads(ctx, req)
			}))
		for range 10 {
			go ask(t, svc, withText("hello"))
		}
		synctest.Wait()
		close(wait)
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 2, "full": 8}, outcomes(svc))
	})
}

func TestMirrorContext(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		free := make(chan struct{})
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-free:
				return &layertest.Response{}, nil
			}
		}}
		type mine struct{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{Timeout: time.Minute}, layer.WithTarget[*layertest.Response]("web"))(kitFunc(reads))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), mine{}, 1))
		route := &layer.Route{Name: "books"}
		began := time.Now()
		_, err := svc.Call(layer.WithRoute(ctx, route), &layertest.Request{})
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 1}, outcomes(svc), "the caller's end is not that of the copy")
		require.Nil(t, to.ctx.Value(mine{}))
		require.Same(t, route, layer.RouteFromContext(to.ctx))
		require.Equal(t, layer.PriorityBulk, layer.PriorityFromContext(to.ctx))
		deadline, _ := to.ctx.Deadline()
		require.Equal(t, began.Add(time.Minute), deadline)

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Equal(t, "mirror web: timeout: a copy took too long (waited 1m0s)", layer.Describe(svc).State.Get("last_error"))
	})
}

func TestMirrorEndsWithContext(t *testing.T) {
	mirrorShared(t, func(t *testing.T, _ context.Context) {
		life, cancel := context.WithCancel(t.Context())
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		wait := make(chan struct{})
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
				if req.ID > 0 {
					<-wait
				}
				return reads(ctx, req)
			}))
		ask(t, svc, withText("hello"))
		go ask(t, svc, &layertest.Request{ID: 1})
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 1}, outcomes(svc))
		cancel()
		close(wait)
		ask(t, svc, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Len(t, to.bodies(), 1, "nothing is begun any more")
	})
}

func TestMirrorRewrite(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		heads := make(chan map[string]string, 1)
		to := &copyTarget{serve: func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
			heads <- req.Header
			return &layertest.Response{}, nil
		}}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{Rewrite: func(copied *layertest.Request) *layertest.Request {
			copied.Header["copy"] = "yes"
			return copied
		}})(kitFunc(reads))
		req := &layertest.Request{Header: map[string]string{"a": "b"}}
		ask(t, svc, req)
		assert.Equal(t, map[string]string{"a": "b", "copy": "yes"}, <-heads)
		assert.Equal(t, map[string]string{"a": "b"}, req.Header)
	})
}

type unforkable struct{ forking }

func (unforkable) TeeRequest(*layertest.Request, int64, func(*layertest.Request, bool)) *layertest.Request {
	panic("no fork")
}

func TestMirrorEditorPanic(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, unforkable{}, mirrorPolicy{})(kitFunc(reads))
		ask(t, svc, withText("hello"))
		require.Equal(t, map[string]int64{"skipped": 1}, outcomes(svc))
		require.Equal(t, "panic: no fork", layer.Describe(svc).State.Get("last_error"))

		svc = layer.Mirror(life, to, forking{}, mirrorPolicy{Rewrite: func(*layertest.Request) *layertest.Request { panic("odd") }})(kitFunc(reads))
		ask(t, svc, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Empty(t, to.bodies())
	})
}

func TestMirrorInnerPanic(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(context.Context, *layertest.Request) (*layertest.Response, error) { panic("primary") }))
		require.PanicsWithValue(t, "primary", func() { _, _ = svc.Call(t.Context(), &layertest.Request{}) })
		synctest.Wait()
		require.Empty(t, to.bodies())
	})
}

func TestMirrorPolicyValidate(t *testing.T) {
	require.NoError(t, mirrorPolicy{}.Validate())
	require.NoError(t, mirrorPolicy{Fraction: 1, MaxBodyBytes: -1, MaxInFlight: 1, Timeout: 1}.Validate())
	for want, p := range map[string]mirrorPolicy{
		"MirrorPolicy.Fraction is NaN, must be 0 to 1":       {Fraction: math.NaN()},
		"MirrorPolicy.Fraction is 1.5, must be 0 to 1":       {Fraction: 1.5},
		"MirrorPolicy.MaxInFlight is -1, must be at least 0": {MaxInFlight: -1},
		"MirrorPolicy.Timeout is -1s, must be at least 0":    {Timeout: -time.Second},
	} {
		require.EqualError(t, p.Validate(), want)
	}
}

// forking is an Editor for the messages of the kit, with the methods that a Mirror calls.
type forking struct {
	layer.Editor[*layertest.Request, *layertest.Response]
}

func (forking) TeeRequest(req *layertest.Request, limit int64, whole func(*layertest.Request, bool)) *layertest.Request {
	copied := &layertest.Request{ID: req.ID, Header: maps.Clone(req.Header)}
	if req.Body == nil {
		whole(copied, true)
		return req
	}
	out := *req
	out.Body = layer.TeeBody(req.Body, -1, limit, func(kept []byte, ok bool) {
		copied.Body = io.NopCloser(strings.NewReader(string(kept)))
		whole(copied, ok)
	})
	return &out
}

// copyTarget is the service that receives copies. It records their bodies.
type copyTarget struct {
	serve func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) // nil answers

	mu   sync.Mutex
	came []string
	ctx  context.Context // the last copy's, to look at
}

func (s *copyTarget) Ready(context.Context) error { panic("a mirror is not waited for") }

func (s *copyTarget) Call(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
	body := ""
	if req.Body != nil {
		b, _ := io.ReadAll(req.Body)
		body = string(b)
	}
	s.mu.Lock()
	s.came, s.ctx = append(s.came, body), ctx
	s.mu.Unlock()
	if s.serve != nil {
		return s.serve(ctx, req)
	}
	return &layertest.Response{ID: req.ID}, nil
}

func (s *copyTarget) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.came...)
}

type (
	mirrorPolicy = layer.MirrorPolicy[*layertest.Request]
	kitFunc      = layer.Func[*layertest.Request, *layertest.Response]
	kitService   = layer.Service[*layertest.Request, *layertest.Response]
)

// mirrorShared runs f in a bubble, with the context of a Mirror.
func mirrorShared(t *testing.T, f func(t *testing.T, life context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		life, cancel := context.WithCancel(t.Context())
		defer time.Sleep(time.Second) // what a copy takes to end
		defer cancel()
		f(t, life)
	})
}

// reads responds after it has read the whole request.
func reads(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	return &layertest.Response{ID: req.ID, Body: io.NopCloser(strings.NewReader("primary"))}, nil
}

func withText(text string) *layertest.Request {
	return &layertest.Request{Body: io.NopCloser(strings.NewReader(text))}
}

// outcomes returns the counts of the outcomes of copies, without zeros.
func outcomes(svc kitService) map[string]int64 {
	got := map[string]int64{}
	for _, a := range layer.Describe(svc).State {
		if n, ok := a.Value.(int64); ok && n != 0 {
			got[a.Key] = n
		}
	}
	return got
}

// ask sends one request, and checks that it is served as without a mirror.
func ask(t *testing.T, svc kitService, req *layertest.Request) {
	t.Helper()
	rsp, err := svc.Call(t.Context(), req)
	if !assert.NoError(t, err) {
		return
	}
	b, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	assert.Equal(t, "primary", string(b))
}
