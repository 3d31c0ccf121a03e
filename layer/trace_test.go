package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// spanLog records the calls of its spans.
type spanLog struct {
	mu   sync.Mutex
	told []string
}

type loggedSpan struct {
	log  *spanLog
	name string
}

func (s loggedSpan) say(what string) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.told = append(s.log.told, s.name+" "+what)
}

func (s loggedSpan) Head(rsp *response)           { s.say(fmt.Sprintf("head %t", rsp != nil)) }
func (s loggedSpan) End(c layer.Class, err error) { s.say(fmt.Sprintf("%v %v", c, err)) }

type spanKey struct{}

// start starts spans that have their parent.
func (l *spanLog) start(name string) func(context.Context, string) (context.Context, layer.Span[*response]) {
	return func(ctx context.Context, req string) (context.Context, layer.Span[*response]) {
		s := loggedSpan{l, name}
		if parent, ok := ctx.Value(spanKey{}).(loggedSpan); ok {
			s.name = parent.name + "/" + name
		}
		return context.WithValue(ctx, spanKey{}, s), s
	}
}

func TestTraceEndsSpansOnce(t *testing.T) {
	boom := errors.New("boom")
	inner := layer.Func[string, *response](func(ctx context.Context, how string) (*response, error) {
		switch how {
		case "error":
			return nil, boom
		case "rejected":
			return nil, layer.ErrNotReady
		case "injected":
			return nil, layer.ErrInjected
		case "panic":
			panic(how)
		case "goexit":
			runtime.Goexit()
		case "gone":
			<-ctx.Done()
			return nil, ctx.Err()
		case "broken":
			return &response{Body: io.NopCloser(io.MultiReader(iotestErr{boom}))}, nil
		case "bare":
			return &response{}, nil
		}
		return bodyOf("some words"), nil
	})
	read := func(b io.ReadCloser) { _, _ = io.ReadAll(b) }
	for how, want := range map[string]struct {
		end  func(io.ReadCloser)
		told []string
	}{
		"read":          {read, []string{"a head true", "a success <nil>"}},
		"closed unread": {func(b io.ReadCloser) { _ = b.Close() }, []string{"a head true", "a success " + layer.ErrBodyClosedEarly.Error()}},
		"broken":        {read, []string{"a head true", "a failure boom"}},
		"bare":          {nil, []string{"a head true", "a success <nil>"}},
		"error":         {nil, []string{"a failure boom"}},
		"rejected":      {nil, []string{"a ignorable not ready"}},
		"injected":      {nil, []string{"a ignorable injected fault"}},
		"gone":          {nil, []string{"a ignorable context canceled"}},
		"abandoned":     {nil, []string{"a head true", "a ignorable context canceled"}},
		"panic":         {nil, []string{"a failure the call panicked or ended its goroutine"}},
		"goexit":        {nil, []string{"a failure the call panicked or ended its goroutine"}},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log spanLog
				svc := layer.Trace(log.start("a"))(inner)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					time.Sleep(time.Second)
					cancel()
				}()
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					rsp, err := svc.Call(ctx, how)
					if err == nil && want.end != nil {
						want.end(rsp.Body)
						_ = rsp.Body.Close()
					}
				}()
				<-done
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Equal(t, want.told, log.told)
			})
		})
	}
}

type iotestErr struct{ err error }

func (r iotestErr) Read([]byte) (int, error) { return 0, r.err }

func TestTraceClassifier(t *testing.T) {
	var log spanLog
	svc := layer.Trace(log.start("a"), layer.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
		if !o.Ended {
			return layer.Throttled
		}
		return layer.Retryable
	}))(layer.Func[string, *response](func(context.Context, string) (*response, error) { return bodyOf("x"), nil }))
	rsp, err := svc.Call(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []string{"a head true"}, log.told)
	_, _ = io.ReadAll(rsp.Body)
	require.Equal(t, []string{"a head true", "a retryable <nil>"}, log.told)
}

func TestTraceContext(t *testing.T) {
	var log spanLog
	var seen any
	svc := layer.Trace(log.start("a"))(layer.Trace(log.start("b"))(
		layer.Func[string, *response](func(ctx context.Context, _ string) (*response, error) {
			seen = ctx.Value(spanKey{}).(loggedSpan).name
			return &response{}, nil
		})))
	_, err := svc.Call(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "a/b", seen)
	require.Equal(t, []string{"a/b head true", "a/b success <nil>", "a head true", "a success <nil>"}, log.told, "inner first")
}

// If Head of a span panics, the span is ended as after a panic of Call.
type headPanicSpan struct{ loggedSpan }

func (s headPanicSpan) Head(*response) { panic("brittle") }

func TestTraceSpanPanic(t *testing.T) {
	var log spanLog
	svc := layer.Trace(func(ctx context.Context, _ string) (context.Context, layer.Span[*response]) {
		return ctx, headPanicSpan{loggedSpan{&log, "a"}}
	})(layer.Func[string, *response](func(context.Context, string) (*response, error) { return &response{}, nil }))
	require.PanicsWithValue(t, "brittle", func() { _, _ = svc.Call(t.Context(), "") })
	require.Len(t, log.told, 1)
}
