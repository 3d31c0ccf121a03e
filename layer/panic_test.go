package layer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

type (
	panicR = *breakerReply
	panicS = layer.Service[int, panicR]
	panicL = layer.Layer[int, panicR]
)

// panicking implements every kind of callback. It panics while it is armed.
type panicking struct{ armed atomic.Bool }

var errBoom = errors.New("boom")

func (p *panicking) boom() {
	if p.armed.Load() {
		panic(errBoom)
	}
}

func (p *panicking) classify(layer.Outcome[panicR]) layer.Class { p.boom(); return layer.Success }
func (p *panicking) complete(_ context.Context, rsp panicR, o layer.Observer) panicR {
	p.boom()
	return layer.AtEnd[panicR]()(context.Background(), rsp, o)
}

func (p *panicking) classifier() layer.Option[panicR] { return layer.WithClassifier(p.classify) }
func (p *panicking) completion() layer.Option[panicR] { return layer.WithCompletion(p.complete) }

// Counter, gauge and histogram. With does not panic.
func (p *panicking) Add(float64)                  { p.boom() }
func (p *panicking) Set(float64)                  { p.boom() }
func (p *panicking) Observe(float64)              { p.boom() }
func (p *panicking) counter() metrics.Counter     { return panickingCounter{p} }
func (p *panicking) gauge() metrics.Gauge         { return panickingGauge{p} }
func (p *panicking) histogram() metrics.Histogram { return panickingHistogram{p} }
func (p *panicking) instruments() layer.Instruments {
	c, g, h := p.counter(), p.gauge(), p.histogram()
	return layer.Instruments{
		Requests: c, Rejections: c, Responses: c, InFlight: g, TimeToHeaders: h, Latency: h, LayerRejections: c, Timeouts: c,
		QueueLength: g, QueueWait: h, Limit: g, Retries: c, RetriesSkipped: c, Budget: g, Hedges: c, BreakerOpened: c, BreakerOpen: g,
		ConnectAttempts: c, FaultsInjected: c, Mirrored: c,
	}
}

type (
	panickingCounter   struct{ *panicking }
	panickingGauge     struct{ *panicking }
	panickingHistogram struct{ *panicking }
	panickingSpan      struct {
		head, end func()
	}
)

func (c panickingCounter) With(...string) metrics.Counter     { return c }
func (g panickingGauge) With(...string) metrics.Gauge         { return g }
func (h panickingHistogram) With(...string) metrics.Histogram { return h }
func (s panickingSpan) Head(panicR)                           { s.head() }
func (s panickingSpan) End(layer.Class, error)                { s.end() }

// panickingBody calls its functions, unless they are nil.
type panickingBody struct {
	io.Reader
	read, close func()
}

func (b *panickingBody) Read(p []byte) (int, error) {
	if b.read != nil {
		b.read()
	}
	return b.Reader.Read(p)
}

func (b *panickingBody) Close() error {
	if b.close != nil {
		b.close()
	}
	return nil
}

func nothing() {}

func traceOf(head, end func()) panicL {
	return layer.Trace(func(ctx context.Context, _ int) (context.Context, layer.Span[panicR]) {
		return ctx, panickingSpan{head, end}
	})
}

// callerCallbacks has every callback that runs on the caller's goroutine.
func callerCallbacks() map[string]func(*panicking) panicL {
	layers := map[string]func(*panicking) panicL{
		"observer: data": func(p *panicking) panicL {
			return func(next panicS) panicS {
				return layer.Func[int, panicR](func(ctx context.Context, n int) (panicR, error) {
					rsp, err := next.Call(ctx, n)
					return layer.AtEnd[panicR]()(ctx, rsp, dataObserver(p.boom)), err
				})
			}
		},
	}
	for _, e := range catalog() {
		for name, l := range e.callbacks {
			layers[e.name+": "+name] = l
		}
	}
	return layers
}

type dataObserver func()

func (o dataObserver) Data(int)  { o() }
func (o dataObserver) End(error) {}

// A panic on the caller's goroutine reaches the caller, and everything is released. The
// only slot below serves the next request, although the context has not ended.
func TestPanicOnCallerGoroutine(t *testing.T) {
	for name, mk := range callerCallbacks() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(panicking)
				below := layer.Limit[int, panicR](1)(layer.Func[int, panicR](func(context.Context, int) (panicR, error) {
					return &breakerReply{200, &panickingBody{Reader: strings.NewReader("x")}}, nil
				}))
				svc := mk(p)(below)
				serve := func() {
					rsp, err := svc.Call(context.Background(), 1)
					require.NoError(t, err)
					defer rsp.Body.Close()
					_, err = io.ReadAll(rsp.Body)
					require.NoError(t, err)
				}
				p.armed.Store(true)
				for range 3 {
					if name != "queue: instrument" { // nothing waits here
						require.PanicsWithValue(t, errBoom, serve)
					}
				}
				p.armed.Store(false)
				require.EqualValues(t, 0, layer.Describe(below).State.Get("in_flight"))
				serve()
				require.EqualValues(t, 0, layer.Describe(below).State.Get("in_flight"))
				if n, ok := layer.Describe(svc).State.Get("in_flight").(int64); ok {
					require.Zero(t, n)
				}
			})
		})
	}
}

// A body that panics ends its response.
func TestPanicOfBody(t *testing.T) {
	p := new(panicking)
	for name, body := range map[string]*panickingBody{
		"read":  {Reader: strings.NewReader("x"), read: p.boom},
		"close": {Reader: strings.NewReader("x"), close: p.boom},
	} {
		t.Run(name, func(t *testing.T) {
			svc := layer.Limit[int, panicR](1)(layer.Func[int, panicR](func(context.Context, int) (panicR, error) {
				return &breakerReply{200, body}, nil
			}))
			rsp, err := svc.Call(context.Background(), 1)
			require.NoError(t, err)
			p.armed.Store(true)
			require.PanicsWithValue(t, errBoom, func() {
				if name == "read" {
					_, _ = rsp.Body.Read(make([]byte, 1))
				} else {
					_ = rsp.Body.Close()
				}
			})
			p.armed.Store(false)
			require.EqualValues(t, 0, layer.Describe(svc).State.Get("in_flight"))
		})
	}
}

// If the context ends a response, its observers are notified on a goroutine of the library.
// A panic there becomes an error of the body, and the slots are released at once.
func TestPanicAtContextEnd(t *testing.T) {
	for name, mk := range map[string]func(p *panicking) panicL{
		"classifier of metrics": func(p *panicking) panicL {
			return layer.Metrics[int](layer.Instruments{}, layer.WithClassifier(p.classify))
		},
		"classifier of breaker": func(p *panicking) panicL {
			return layer.Breaker[int](layer.BreakerPolicy{MinSuccessRate: 0.5}, layer.WithClassifier(p.classify))
		},
		"classifier of trace": func(p *panicking) panicL {
			return layer.Trace(func(ctx context.Context, _ int) (context.Context, layer.Span[panicR]) {
				return ctx, panickingSpan{nothing, nothing}
			}, layer.WithClassifier(p.classify))
		},
		"span":       func(p *panicking) panicL { return traceOf(nothing, p.boom) },
		"instrument": func(p *panicking) panicL { return layer.Metrics[int, panicR](p.instruments()) },
		"observer": func(p *panicking) panicL {
			return func(next panicS) panicS {
				return layer.Func[int, panicR](func(ctx context.Context, n int) (panicR, error) {
					rsp, err := next.Call(ctx, n)
					return layer.AtEnd[panicR]()(ctx, rsp, endObserver(p.boom)), err
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(panicking)
				endpoint := layer.Func[int, panicR](func(ctx context.Context, _ int) (panicR, error) {
					return &breakerReply{200, &panickingBody{Reader: strings.NewReader("x")}}, nil
				})
				limit := layer.Limit[int, panicR](1)(mk(p)(endpoint))
				// A deadline is used, because cancellations by the caller are not
				// classified.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				rsp, err := limit.Call(ctx, 1)
				require.NoError(t, err)
				p.armed.Store(true)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.EqualValues(t, 0, layer.Describe(limit).State.Get("in_flight"))
				var panicked *layer.PanicError
				require.ErrorAs(t, rsp.Body.Close(), &panicked)
				assert.Equal(t, errBoom, panicked.Value)
				assert.Contains(t, string(panicked.Stack), "panic_test.go")
			})
		})
	}
}

type endObserver func()

func (o endObserver) Data(int)  {}
func (o endObserver) End(error) { o() }

// The timer of DrainBody closes a body that has not ended in time. A panic of that Close
// still reaches the caller.
func TestPanicInDrainBodyTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		body := &panickingBody{Reader: strings.NewReader("x"), read: func() { <-closed }, close: func() { close(closed); panic(errBoom) }}
		require.PanicsWithValue(t, errBoom, func() { layer.DrainBody(body) })
	})
}

// Callbacks of the copy of a hedge, which a timer sends.
func TestPanicInHedgeCopy(t *testing.T) {
	p := new(panicking)
	hedges := layer.Instruments{Hedges: p.counter(), Budget: p.gauge()}
	for name, opts := range map[string][]layer.Option[panicR]{
		"classifier":    {layer.WithClassifier(p.classify)},
		"instruments":   {layer.WithMetrics[panicR](hedges)},
		"close of body": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p.armed.Store(false)
				defer p.armed.Store(false)
				var calls atomic.Int64
				below := layer.Limit[int, panicR](2)(layer.Func[int, panicR](func(ctx context.Context, _ int) (panicR, error) {
					if calls.Add(1) == 1 {
						time.Sleep(3 * time.Second)
						p.armed.Store(false)
						return &breakerReply{200, &panickingBody{Reader: strings.NewReader("first")}}, nil
					}
					p.armed.Store(true)
					body := &panickingBody{Reader: strings.NewReader("copy")}
					if opts == nil { // which is late, and discarded
						time.Sleep(3 * time.Second)
						p.armed.Store(true)
						body.close = p.boom
					}
					return &breakerReply{200, body}, nil
				}))
				svc := layer.Hedge(after[int](time.Second), opts...)(below)
				rsp, err := svc.Call(context.Background(), 1)
				require.NoError(t, err)
				_, err = io.ReadAll(rsp.Body)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				time.Sleep(time.Minute)
				require.EqualValues(t, 0, layer.Describe(below).State.Get("in_flight"))
			})
		})
	}
}

// Callbacks of a mirror's copy, of a connect and of the timers.
func TestPanicInBackground(t *testing.T) {
	p := new(panicking)
	pass := layer.Func[int, panicR](func(ctx context.Context, _ int) (panicR, error) {
		return &breakerReply{200, &panickingBody{Reader: strings.NewReader("x")}}, nil
	})
	measured := layer.WithMetrics[panicR](p.instruments())
	t.Run("reconnect", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			fails := true
			connect := func(context.Context) (panicS, error) {
				if fails {
					return nil, errBoom
				}
				return pass, nil
			}
			svc := layer.Reconnect(ctx, connect, layer.Backoff{Min: time.Second, Max: time.Second}, layer.WithMetrics[panicR](layer.Instruments{ConnectAttempts: p.counter()}))
			p.armed.Store(true)
			defer p.armed.Store(false)
			_, err := svc.Call(ctx, 1)
			require.ErrorIs(t, err, layer.ErrNotReady)
			synctest.Wait()
			fails = false
			require.NoError(t, svc.Ready(ctx))
			_, err = svc.Call(ctx, 1)
			require.NoError(t, err)
		})
	})
	t.Run("idle timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			svc := layer.IdleTimeout[int](time.Second, measured)(layer.Func[int, panicR](func(ctx context.Context, _ int) (panicR, error) {
				return &breakerReply{200, &panickingBody{Reader: strings.NewReader(""), read: func() { <-ctx.Done() }}}, nil
			}))
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			p.armed.Store(true)
			defer p.armed.Store(false)
			_, _ = rsp.Body.Read(make([]byte, 1)) // comes back: the context was cancelled all the same
		})
	})
	t.Run("mirror", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			svc := layer.Mirror(t.Context(), pass, mirrorWhole{}, layer.MirrorPolicy[int]{Rewrite: func(n int) int { p.boom(); return n }}, measured)(pass)
			p.armed.Store(true)
			_, err := svc.Call(t.Context(), 1)
			synctest.Wait()
			p.armed.Store(false)
			require.NoError(t, err)
			n := layer.Describe(svc)
			assert.EqualValues(t, 0, n.State.Get("in_flight"))
			assert.EqualValues(t, 1, n.State.Get("failed"))
			assert.Regexp(t, `^panic at panic_test\.go:\d+: boom$`, n.State.Get("last_error"))
		})
	})
	t.Run("queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			free := make(chan struct{})
			limit := layer.Limit[int, panicR](1)(layer.Func[int, panicR](func(context.Context, int) (panicR, error) {
				<-free
				return &breakerReply{200, &panickingBody{Reader: strings.NewReader("")}}, nil
			}))
			svc := layer.Queue[int](10, time.Hour, measured)(limit)
			done := make(chan struct{})
			go func() {
				defer close(done)
				rsp, err := svc.Call(t.Context(), 1)
				assert.NoError(t, err)
				_ = rsp.Body.Close()
			}()
			synctest.Wait()
			p.armed.Store(true)
			for range 3 { // each would stand in line
				require.PanicsWithValue(t, errBoom, func() { _, _ = svc.Call(t.Context(), 1) })
			}
			p.armed.Store(false)
			close(free)
			<-done
			require.EqualValues(t, 0, layer.Describe(svc).State.Get("waiting"))
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		})
	})
}

// mirrorWhole copies requests that have no body.
type mirrorWhole struct{ layer.Editor[int, panicR] }

func (mirrorWhole) TeeRequest(req int, _ int64, whole func(int, bool)) int {
	whole(req, true)
	return req
}

// A response without a body ends before Call returns. If the classifier panics then, the request
// ends once.
func TestPanicWithoutBody(t *testing.T) {
	classify := layer.WithClassifier(func(layer.Outcome[int]) layer.Class { panic(errBoom) })
	leaf := layer.Func[int, int](func(context.Context, int) (int, error) { return 1, nil })
	var flight gauge
	responses := byLabel{}
	ends := 0
	start := func(ctx context.Context, _ int) (context.Context, layer.Span[int]) { return ctx, countedSpan{&ends} }
	for _, svc := range []layer.Service[int, int]{
		layer.Metrics[int](layer.Instruments{InFlight: &flight, Responses: responses}, classify)(leaf),
		layer.Trace(start, classify)(leaf),
	} {
		require.PanicsWithValue(t, errBoom, func() { _, _ = svc.Call(t.Context(), 1) })
	}
	require.Zero(t, flight)
	require.EqualValues(t, 1, *responses["failure"])
	require.Equal(t, 1, ends)
}

type countedSpan struct{ ends *int }

func (countedSpan) Head(int)                 {}
func (s countedSpan) End(layer.Class, error) { *s.ends++ }
