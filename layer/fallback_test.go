package layer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// fallbackBody counts how often it is closed.
type fallbackBody struct {
	io.Reader
	closed atomic.Int64
}

func newFallbackBody(text string) *fallbackBody {
	return &fallbackBody{Reader: strings.NewReader(text)}
}

func (b *fallbackBody) Close() error { b.closed.Add(1); return nil }

type fallbackRequest struct{ Body io.ReadCloser }

type (
	fallbackQ = *fallbackRequest
	fallbackR = *breakerReply
)

func fallbackFunc(rsp fallbackR, err error) layer.Func[fallbackQ, fallbackR] {
	return func(context.Context, fallbackQ) (fallbackR, error) { return rsp, err }
}

func fallbackOver(
	p layer.FallbackPolicy[fallbackQ, fallbackR], inner layer.Service[fallbackQ, fallbackR], opts ...layer.Option[fallbackR],
) layer.Service[fallbackQ, fallbackR] {
	return layer.Fallback(p, append(opts, layer.WithClassifier(breakerStatus))...)(inner)
}

func TestFallbackReplaces(t *testing.T) {
	rejection := &layer.Error{Layer: "limit", Kind: layer.ErrNotReady}
	for name, tt := range map[string]struct {
		rsp      fallbackR
		err      error
		replaced bool
	}{
		"a success":         {&breakerReply{Status: 200}, nil, false},
		"a failed response": {&breakerReply{Status: 503}, nil, true},
		"an error":          {nil, errBreaker, true},
		"a rejection":       {nil, rejection, true},
		"a closed service":  {nil, layer.ErrClosed, true},
		"an injected fault": {nil, layer.ErrInjected, true},
		"a time limit":      {nil, layer.ErrTimeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked layer.Outcome[fallbackR]
			req := &fallbackRequest{}
			svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
				Handle: func(_ context.Context, got fallbackQ, o layer.Outcome[fallbackR]) (fallbackR, error) {
					require.Same(t, req, got)
					asked = o
					return &breakerReply{Status: 299}, nil
				},
			}, fallbackFunc(tt.rsp, tt.err))
			rsp, err := svc.Call(t.Context(), req)
			require.NoError(t, err)
			if !tt.replaced {
				require.Same(t, tt.rsp, rsp)
				return
			}
			require.Equal(t, 299, rsp.Status)
			require.Equal(t, layer.Outcome[fallbackR]{Response: tt.rsp, Err: tt.err}, asked)
			require.EqualValues(t, 1, layer.Describe(svc).State.Get("replaced"))
		})
	}
}

func TestFallbackCanceledCaller(t *testing.T) {
	always := layer.FallbackPolicy[fallbackQ, fallbackR]{
		Handle: func(context.Context, fallbackQ, layer.Outcome[fallbackR]) (fallbackR, error) {
			return nil, errors.New("replaced")
		},
		FallbackIf: func(layer.Class, layer.Outcome[fallbackR]) bool { return true },
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	svc := fallbackOver(always, layer.Func[fallbackQ, fallbackR](func(ctx context.Context, _ fallbackQ) (fallbackR, error) {
		cancel(errBreaker)
		return nil, context.Cause(ctx)
	}))
	_, err := svc.Call(ctx, nil)
	require.Equal(t, errBreaker, err)
	_, err = svc.Call(ctx, nil)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, errBreaker)
}

func TestFallbackIf(t *testing.T) {
	svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
		Handle: func(context.Context, fallbackQ, layer.Outcome[fallbackR]) (fallbackR, error) {
			return &breakerReply{Status: 299}, nil
		},
		FallbackIf: func(c layer.Class, o layer.Outcome[fallbackR]) bool {
			return c == layer.Success && o.Response.Status == 204
		},
	}, layer.Func[fallbackQ, fallbackR](func(_ context.Context, q fallbackQ) (fallbackR, error) {
		if q == nil {
			return nil, errBreaker
		}
		return &breakerReply{Status: 204}, nil
	}))
	_, err := svc.Call(t.Context(), nil)
	require.Equal(t, errBreaker, err)
	rsp, err := svc.Call(t.Context(), &fallbackRequest{})
	require.NoError(t, err)
	require.Equal(t, 299, rsp.Status)
}

func TestFallbackClosesReplacedBody(t *testing.T) {
	old := newFallbackBody("old")
	closed := int64(-1)
	svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
		Handle: func(context.Context, fallbackQ, layer.Outcome[fallbackR]) (fallbackR, error) {
			closed = old.closed.Load()
			return &breakerReply{200, newFallbackBody("new")}, nil
		},
	}, fallbackFunc(&breakerReply{500, old}, nil))
	rsp, err := svc.Call(t.Context(), &fallbackRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, closed, "before the substitute is asked for, and once")
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "new", string(text))
	require.Zero(t, rsp.Body.(*fallbackBody).closed.Load())
}

// Inner does not close the body of a request that it rejected, and Handle does
// not take the body.
func TestFallbackClosesRequestBody(t *testing.T) {
	for name, tt := range map[string]struct {
		rsp     fallbackR
		err, to error
		closes  int64
	}{
		"rejected":                {nil, layer.ErrNotReady, nil, 1},
		"injected":                {nil, layer.ErrInjected, nil, 1},
		"rejected, and by To":     {nil, layer.ErrNotReady, layer.ErrNotReady, 0},
		"served, and it was bad":  {&breakerReply{Status: 500}, nil, nil, 0},
		"served, and it was good": {&breakerReply{Status: 200}, nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			body := newFallbackBody("x")
			svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
				Handle: func(_ context.Context, q fallbackQ, _ layer.Outcome[fallbackR]) (fallbackR, error) {
					require.Zero(t, q.Body.(*fallbackBody).closed.Load(), "not before")
					return &breakerReply{Status: 299}, tt.to
				},
			}, fallbackFunc(tt.rsp, tt.err))
			_, err := svc.Call(t.Context(), &fallbackRequest{Body: body})
			require.ErrorIs(t, err, tt.to)
			require.Equal(t, tt.closes, body.closed.Load())
		})
	}
}

// fallbackProtocol counts the responses that it drains.
type fallbackProtocol struct {
	layer.BaseProtocol[fallbackQ, fallbackR]
	discarded atomic.Int64
}

func (p *fallbackProtocol) Drain(fallbackR) { p.discarded.Add(1) }

func TestFallbackDiscardsByProtocol(t *testing.T) {
	old, protocol := newFallbackBody("old"), &fallbackProtocol{}
	svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
		Handle: func(context.Context, fallbackQ, layer.Outcome[fallbackR]) (fallbackR, error) { return nil, errBreaker },
	}, fallbackFunc(&breakerReply{500, old}, nil), layer.WithProtocol(protocol))
	_, err := svc.Call(t.Context(), &fallbackRequest{})
	require.ErrorIs(t, err, errBreaker)
	require.EqualError(t, err, "fallback: in place of a failed response: the endpoint fails")
	require.EqualValues(t, 1, protocol.discarded.Load())
	require.Zero(t, old.closed.Load(), "that is for the protocol")
}

// The error after a request that the first service may have processed must not be a
// rejection. A request that both services reject is a rejection.
func TestFallbackErrors(t *testing.T) {
	busy := &layer.Error{Layer: "limit", Kind: layer.ErrNotReady, Reason: "full", RetryAfter: 7}
	gone := &layer.Error{Layer: "conn", Kind: layer.ErrClosed}
	for name, tt := range map[string]struct {
		first, second error
		is, isNot     error
		text          string
	}{
		"failed, failed":     {errBreaker, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF, layer.ErrNotReady, "fallback: in place of (the endpoint fails): unexpected EOF"},
		"failed, rejected":   {errBreaker, busy, nil, layer.ErrNotReady, "fallback: in place of (the endpoint fails): limit: not ready: full"},
		"rejected, failed":   {busy, errBreaker, errBreaker, layer.ErrNotReady, "fallback: in place of (limit: not ready: full): the endpoint fails"},
		"rejected, rejected": {busy, busy, layer.ErrNotReady, layer.ErrClosed, "limit: not ready: full"},
		"rejected, closed":   {busy, gone, layer.ErrNotReady, layer.ErrClosed, "fallback: not ready: in place of (limit: not ready: full): conn: closed"},
		"closed, rejected":   {gone, busy, layer.ErrNotReady, layer.ErrClosed, "fallback: in place of (conn: closed): limit: not ready: full"},
	} {
		t.Run(name, func(t *testing.T) {
			svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
				Handle: func(context.Context, fallbackQ, layer.Outcome[fallbackR]) (fallbackR, error) { return nil, tt.second },
			}, fallbackFunc(nil, tt.first))
			_, err := svc.Call(t.Context(), &fallbackRequest{})
			require.EqualError(t, err, tt.text)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.NotErrorIs(t, err, tt.isNot)
			if errors.Is(tt.second, busy) {
				after, _ := layer.RetryAfter(err)
				require.EqualValues(t, 7, after)
			}
		})
	}
}

func TestFallbackReturnsSameError(t *testing.T) {
	svc := fallbackOver(layer.FallbackPolicy[fallbackQ, fallbackR]{
		Handle: func(_ context.Context, _ fallbackQ, o layer.Outcome[fallbackR]) (fallbackR, error) {
			return o.Response, o.Err
		},
	}, fallbackFunc(nil, errBreaker))
	_, err := svc.Call(t.Context(), nil)
	require.Equal(t, errBreaker, err)
}

// A response without a body is complete, so the classifier gets Ended as true.
func TestFallbackClassifiesWholeResponse(t *testing.T) {
	whole := layer.WithClassifier[int](func(o layer.Outcome[int]) layer.Class {
		if o.Ended && o.Response < 0 {
			return layer.Failure
		}
		return layer.Success
	})
	svc := layer.Fallback(layer.FallbackPolicy[int, int]{
		Handle: func(context.Context, int, layer.Outcome[int]) (int, error) { return 7, nil },
	}, whole)(layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil }))
	rsp, err := svc.Call(t.Context(), -1)
	require.NoError(t, err)
	require.Equal(t, 7, rsp)
}
