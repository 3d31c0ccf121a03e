package layertest

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// counted counts ended responses.
type counted struct {
	service
	ended    *atomic.Int64
	complete completion
}

func (c counted) Call(ctx context.Context, req *Request) (*Response, error) {
	rsp, err := c.service.Call(ctx, req)
	if err != nil {
		return nil, err
	}
	return c.complete(ctx, rsp, c), nil
}

func (c counted) Data(int)  {}
func (c counted) End(error) { c.ended.Add(1) }

func counts(complete completion) (aLayer, func() int) {
	var ended atomic.Int64
	return func(next service) service { return counted{next, &ended, complete} },
		func() int { return int(ended.Load()) }
}

// short returns spec with fewer concurrent callers, unless GOTOWER_TESTS is "full" or the
// race detector is on.
func short(spec Layer) Layer {
	if os.Getenv("GOTOWER_TESTS") != "full" && !raceEnabled {
		spec.Callers = shortCallers
	}
	return spec
}

func TestRunCorrectLayers(t *testing.T) {
	atEnd, atReturn := layer.AtEnd[*Response](), layer.AtReturn[*Response]
	counter, ended := counts(atEnd)
	counterAtReturn, endedAtReturn := counts(atReturn)
	both := layer.NewStack[*Request, *Response]().
		With("queue", queues(5, time.Second, "")).
		With("limit", limits(3, atEnd, "")).Layer()
	for name, spec := range map[string]Layer{
		"pass":              {Layer: passes, Transparent: true},
		"limit":             {Layer: limits(8, atEnd, ""), Limit: 8},
		"limit of one":      {Layer: limits(1, atEnd, ""), Limit: 1},
		"limit at return":   {Layer: limits(8, atReturn, ""), Limit: 8, AtReturn: true},
		"queue":             {Layer: queues(300, 0, ""), Queue: 300},
		"queue with a wait": {Layer: queues(16, 3*time.Second, ""), Queue: 16, MaxWait: 3 * time.Second},
		"queue over limit":  {Layer: both, Limit: 3, Queue: 5, MaxWait: time.Second},
		"timeout":           {Layer: times(time.Minute)},
		"count":             {Layer: counter, Ended: ended, AtReturn: false, Transparent: false},
		"count at return":   {Layer: counterAtReturn, Ended: endedAtReturn, AtReturn: true},
		"tries":             resends(3, ""),
		"background": {New: func(ctx context.Context, next service) service {
			go func() { <-ctx.Done() }()
			return pass{next}
		}},
	} {
		t.Run(name, func(t *testing.T) { Run(t, short(spec)) })
	}
}

// The checks set the bodies of messages of net/http.
func TestRunHTTP(t *testing.T) {
	Run(t, LayerOf[*http.Request, *http.Response]{
		Layer: func(next layer.Service[*http.Request, *http.Response]) layer.Service[*http.Request, *http.Response] {
			return struct {
				layer.Service[*http.Request, *http.Response]
			}{next}
		},
		Request: func(int) *http.Request {
			req, err := http.NewRequest(http.MethodPost, "http://web.test/", strings.NewReader("hello"))
			require.NoError(t, err)
			return req
		},
		Response:    func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
		Transparent: true,
	})
}

// The messages have no body and are all equal.
func TestRunStrings(t *testing.T) {
	Run(t, LayerOf[string, int]{
		Layer: func(next layer.Service[string, int]) layer.Service[string, int] {
			return struct{ layer.Service[string, int] }{next}
		},
		Request:  func(i int) string { return strings.Repeat("x", i%10) },
		Response: func(i int) int { return i },
	})
}

func TestRunService(t *testing.T) {
	mock := func(svc service) *Mock[*Request, *Response] { return svc.(*Mock[*Request, *Response]) }
	Run(t, Service{
		New: func(context.Context) service {
			m := NewMock[*Request, *Response]()
			m.Serve(func(context.Context, *Request) (*Response, error) { return &Response{}, nil })
			m.Allow(Unlimited)
			return m
		},
		Fill: func(svc service) func() {
			mock(svc).Deny()
			return func() { mock(svc).Allow(Unlimited) }
		},
		Served: func(svc service) int { return len(mock(svc).Requests()) },
		Close:  func(svc service) { mock(svc).Close() },
	})
}
