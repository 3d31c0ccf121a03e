package layer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// recorder is an Observer that records its calls.
type recorder struct {
	mu    sync.Mutex
	bytes int
	ends  []error
}

func (r *recorder) Data(n int) { r.mu.Lock(); r.bytes += n; r.mu.Unlock() }
func (r *recorder) End(err error) {
	r.mu.Lock()
	r.ends = append(r.ends, err)
	r.mu.Unlock()
}

func TestObserveBodyEndsOnce(t *testing.T) {
	broken := errors.New("broken")
	gone := errors.New("gone")
	tests := map[string]struct {
		body  io.Reader
		use   func(io.ReadCloser, context.CancelCauseFunc)
		bytes int
		end   error
	}{
		"complete": {
			body: strings.NewReader("hello"),
			use: func(b io.ReadCloser, _ context.CancelCauseFunc) {
				_, _ = io.ReadAll(b)
				_ = b.Close()
			},
			bytes: 5,
		},
		"complete with the last bytes": {
			body:  iotest.DataErrReader(strings.NewReader("hello")),
			use:   func(b io.ReadCloser, _ context.CancelCauseFunc) { _, _ = b.Read(make([]byte, 10)) },
			bytes: 5,
		},
		"closed early": {
			body:  strings.NewReader("hello"),
			use:   func(b io.ReadCloser, _ context.CancelCauseFunc) { _, _ = b.Read(make([]byte, 2)); _ = b.Close() },
			bytes: 2,
			end:   layer.ErrBodyClosedEarly,
		},
		"broken": {
			body:  io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(broken)),
			use:   func(b io.ReadCloser, _ context.CancelCauseFunc) { _, _ = io.ReadAll(b); _ = b.Close() },
			bytes: 3,
			end:   broken,
		},
		"abandoned": {
			body: strings.NewReader("hello"),
			use:  func(_ io.ReadCloser, cancel context.CancelCauseFunc) { cancel(gone) },
			end:  gone,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				inner, outer := &recorder{}, &recorder{}
				b := layer.ObserveBody(ctx, io.NopCloser(tt.body), inner)
				require.Same(t, b, layer.ObserveBody(ctx, b, outer), "one wrapper for all")
				tt.use(b, cancel)
				synctest.Wait()
				for _, r := range []*recorder{inner, outer} {
					assert.Equal(t, []error{tt.end}, r.ends)
					assert.Equal(t, tt.bytes, r.bytes)
				}
				late := &recorder{}
				layer.ObserveBody(ctx, b, late)
				assert.Equal(t, []error{tt.end}, late.ends, "a late observer is notified at once")
			})
		})
	}
}

// An observer that panics at the end does not prevent calls of the other observers.
func TestObserveBodyObserverPanic(t *testing.T) {
	inner, outer := &recorder{}, &recorder{}
	body := layer.ObserveBody(t.Context(), io.NopCloser(strings.NewReader("hello")), inner)
	for _, o := range []layer.Observer{panickingObserver{"first"}, panickingObserver{"second"}, outer} {
		layer.ObserveBody(t.Context(), body, o)
	}
	require.Panics(t, func() { _, _ = io.ReadAll(body) })
	require.NoError(t, body.Close())
	for _, r := range []*recorder{inner, outer} {
		require.Equal(t, []error{nil}, r.ends)
		require.Equal(t, 5, r.bytes)
	}
}

// panickingObserver is an Observer that panics at the end.
type panickingObserver struct{ text string }

func (panickingObserver) Data(int)    {}
func (b panickingObserver) End(error) { panic(b.text) }

// A classifier that panics at the end leaves no count, in its own layer and in the layers
// above.
func TestClassifierPanicAtEnd(t *testing.T) {
	var log spanLog
	var flight gauge
	failures := byLabel{}
	d := layer.NewDrainer()
	stack := layer.NewStack[string](layer.WithClassifier(panicsAtEnd)).Drain(d).Limit(1).
		Metrics(layer.Instruments{InFlight: &flight, Responses: failures})
	for name, traced := range map[string]layer.Layer[string, *response]{
		"metrics": nil,
		"trace":   layer.Trace(log.start("a"), layer.WithClassifier(panicsAtEnd)),
	} {
		t.Run(name, func(t *testing.T) {
			svc := stack.With("trace", traced).Service(layer.Func[string, *response](
				func(_ context.Context, how string) (*response, error) {
					if how == "error" {
						return nil, io.ErrUnexpectedEOF
					}
					return bodyOf("x"), nil
				}))
			rsp, err := svc.Call(t.Context(), "")
			require.NoError(t, err)
			require.EqualValues(t, 1, flight)
			require.Panics(t, func() { _, _ = io.ReadAll(rsp.Body) })
			require.Panics(t, func() { _, _ = svc.Call(t.Context(), "error") })
			require.Zero(t, d.InFlight())
			require.Zero(t, flight)
		})
	}
	require.EqualValues(t, 4, *failures["failure"])
	require.Equal(t, []string{"a head true", "a failure <nil>", "a failure the call panicked or ended its goroutine"}, log.told)
}

// panicsAtEnd is a classifier that panics at the end of a response.
func panicsAtEnd(o layer.Outcome[*response]) layer.Class {
	if o.Ended || o.Err != nil {
		panic("odd")
	}
	return layer.Success
}

type stream struct{ io.ReadWriter }

func (stream) Close() error { return nil }

func TestObserveBodyKeepsWriter(t *testing.T) {
	var wire strings.Builder
	type rw struct {
		io.Reader
		io.Writer
	}
	r := &recorder{}
	body := layer.ObserveBody(t.Context(), stream{rw{strings.NewReader("in"), &wire}}, r)
	w, ok := body.(io.ReadWriteCloser)
	require.True(t, ok)
	_, err := w.Write([]byte("out"))
	require.NoError(t, err)
	require.Equal(t, "out", wire.String())
	require.Same(t, body, layer.ObserveBody(t.Context(), body, &recorder{}))
	require.NotImplements(t, (*interface{ CloseWrite() error })(nil), body, "what is below cannot")
	_, err = io.ReadAll(body)
	require.NoError(t, err)
	require.Equal(t, 2, r.bytes)
	require.Empty(t, r.ends, "the other direction may continue")
	require.NoError(t, body.Close())
	require.Equal(t, []error{nil}, r.ends)
}

// An observed connection keeps its method CloseWrite.
func TestObserveBodyKeepsCloseWrite(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ended := false
	body := layer.ObserveBody(t.Context(), halfClosed{near, &ended}, &recorder{})
	half, ok := body.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	require.True(t, ended)
	require.NoError(t, body.Close())
}

type halfClosed struct {
	net.Conn
	ended *bool
}

func (h halfClosed) CloseWrite() error {
	*h.ended = true
	return nil
}

func TestAtEndResponseTypes(t *testing.T) {
	r := &recorder{}
	rsp := layer.AtEnd[*response]()(t.Context(), bodyOf("hello"), r)
	require.Empty(t, r.ends)
	_, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, []error{nil}, r.ends)

	require.True(t, layer.HasBody[*response]())
	require.False(t, layer.HasBody[response]())
	require.False(t, layer.HasBody[string]())

	for name, observe := range map[string]func(layer.Observer){
		"no body":      func(o layer.Observer) { layer.AtEnd[*response]()(t.Context(), &response{}, o) },
		"no response":  func(o layer.Observer) { layer.AtEnd[*response]()(t.Context(), nil, o) },
		"no such type": func(o layer.Observer) { layer.AtEnd[string]()(t.Context(), "x", o) },
		"other Body":   func(o layer.Observer) { layer.AtEnd[*struct{ Body string }]()(t.Context(), nil, o) },
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			observe(r)
			require.Equal(t, []error{nil}, r.ends)
		})
	}
}

// A Completion that panics leaves no slot taken, no request open and no entry in
// use.
func TestCompletionPanic(t *testing.T) {
	until := layer.WithCompletion(func(_ context.Context, rsp int, o layer.Observer) int {
		if rsp < 0 {
			panic("completion")
		}
		o.End(nil)
		return rsp
	})
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cache := layer.NewCache(ctx, func(context.Context, string) layer.Service[int, int] { return inner }, layer.CachePolicy{}, until)
	for name, svc := range map[string]layer.Service[int, int]{
		"limit":    layer.Limit[int](2, until)(inner),
		"adaptive": layer.AdaptiveLimit[int](layer.AdaptivePolicy{Max: 2}, until)(inner),
		"shed":     layer.Shed[int](layer.ShedPolicy{}, until)(inner),
		"drain":    layer.Drain[int](new(layer.Drainer), until)(inner),
		"cache":    cache.Service("a"),
	} {
		for range 3 {
			require.PanicsWithValue(t, "completion", func() { _, _ = svc.Call(ctx, -1) }, name)
		}
		_, err := svc.Call(ctx, 1)
		require.NoError(t, err, name)
		if n, ok := layer.Describe(svc).State.Get("in_flight").(int64); ok {
			require.Zero(t, n, name)
		}
	}
	require.EqualValues(t, 0, cache.Describe().Children[0].State.Get("open"))
}
