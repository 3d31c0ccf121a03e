package layer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// tried calls req through a Retry of three attempts. The inner service reads the body
// and always fails. tried returns the bodies.
func tried[Req any](t *testing.T, req Req, body func(Req) io.ReadCloser) (read []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Retry(layer.RetryPolicy[Req, int]{}, layer.WithClassifier(failuresAgain[int]))(layer.Func[Req, int](
			func(_ context.Context, req Req) (int, error) {
				text := ""
				if b := body(req); b != nil {
					data, err := io.ReadAll(b)
					assert.NoError(t, err)
					b.Close()
					text = string(data)
				}
				read = append(read, text)
				return 0, errServer
			}))
		_, err := svc.Call(t.Context(), req)
		require.ErrorIs(t, err, errServer)
	})
	return read
}

func noBody[Req any](Req) io.ReadCloser { return nil }

// RFC 9110, section 9.2.2.
func TestProtocolIdempotentMethods(t *testing.T) {
	for method, want := range map[string]int{
		"GET": 3, "HEAD": 3, "OPTIONS": 3, "TRACE": 3, "PUT": 3, "DELETE": 3, "": 3,
		"POST": 1, "PATCH": 1, "CONNECT": 1, "get": 1, "LOCK": 1,
	} {
		assert.Len(t, tried(t, &retryRequest{Method: method}, noBody[*retryRequest]), want, method)
	}
	assert.Len(t, tried[*retryRequest](t, nil, noBody[*retryRequest]), 3)
	type verb string
	assert.Len(t, tried(t, &struct{ Method verb }{"POST"}, noBody[*struct{ Method verb }]), 1)
	assert.Len(t, tried(t, &struct{ Method int }{}, noBody[*struct{ Method int }]), 3, "which is no method")
}

func TestProtocolWithoutBody(t *testing.T) {
	assert.Len(t, tried(t, "hello", noBody[string]), 3)
	assert.Len(t, tried(t, &retryRequest{}, noBody[*retryRequest]), 3)
	assert.Len(t, tried(t, struct{ Body io.ReadCloser }{}, noBody[struct{ Body io.ReadCloser }]), 3)
}

// moonrhythm/parapet#240: the body of a request with GetBody is not kept, so its size
// has no limit.
func TestProtocolGetBody(t *testing.T) {
	type request struct {
		Body    io.ReadCloser
		GetBody func() (io.ReadCloser, error)
		Header  map[string]string
	}
	text := strings.Repeat("x", 100<<10)
	req := &request{Body: io.NopCloser(strings.NewReader(text))}
	body := func(r *request) io.ReadCloser { return r.Body }
	assert.Equal(t, []string{text}, tried(t, req, body), "larger than what is kept")

	req.Body = io.NopCloser(strings.NewReader(text))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	assert.Equal(t, []string{text, text, text}, tried(t, req, body))

	req.Body = io.NopCloser(strings.NewReader(text))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
	assert.Equal(t, []string{text}, tried(t, req, body))
}

// A layer below cannot send the copies again. The body of a rejected copy is closed,
// because no other component would close it.
func TestProtocolGetBodyClosesRejected(t *testing.T) {
	type request struct {
		Body    io.ReadCloser
		GetBody func() (io.ReadCloser, error)
	}
	synctest.Test(t, func(t *testing.T) {
		second := &closeable{Reader: strings.NewReader("x")}
		tries := 0
		svc := layer.Retry(layer.RetryPolicy[*request, int]{MaxAttempts: 2}, layer.WithClassifier(failuresAgain[int]))(
			layer.Func[*request, int](func(_ context.Context, req *request) (int, error) {
				if tries++; tries == 1 {
					return 0, errServer
				}
				assert.Nil(t, req.GetBody)
				return 0, layer.ErrNotReady
			}))
		req := &request{
			Body:    io.NopCloser(strings.NewReader("x")),
			GetBody: func() (io.ReadCloser, error) { return second, nil },
		}
		_, err := svc.Call(t.Context(), req)
		require.ErrorIs(t, err, errServer)
		require.NotErrorIs(t, err, layer.ErrNotReady)
		assert.True(t, second.closed)
	})
}

// If an attempt fails without taking its body, the next attempt closes that body.
func TestProtocolGetBodyClosesUnsent(t *testing.T) {
	type request struct {
		Body    io.ReadCloser
		GetBody func() (io.ReadCloser, error)
	}
	synctest.Test(t, func(t *testing.T) {
		var bodies []*closeable
		get := func() (io.ReadCloser, error) {
			bodies = append(bodies, &closeable{Reader: strings.NewReader("x")})
			return bodies[len(bodies)-1], nil
		}
		svc := layer.Retry(layer.RetryPolicy[*request, int]{}, layer.WithClassifier(failuresAgain[int]))(
			layer.Func[*request, int](func(_ context.Context, req *request) (int, error) {
				for i, b := range bodies {
					assert.Equal(t, i < len(bodies)-1, b.closed, "%d of %d", i, len(bodies))
				}
				if len(bodies) < 3 {
					return 0, errServer
				}
				assert.Same(t, bodies[2], req.Body)
				return 1, req.Body.Close()
			}))
		req := &request{GetBody: get}
		req.Body, _ = get()
		_, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Len(t, bodies, 3)
		for _, b := range bodies {
			assert.True(t, b.closed)
		}
	})
}

// The Protocol of a stack is used instead of the default one.
func TestWithProtocol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &resendOfOne{}
		sent := 0
		svc := layer.Retry(layer.RetryPolicy[int, int]{}, layer.WithProtocol(own), layer.WithClassifier(func(layer.Outcome[int]) layer.Class {
			return layer.Throttled
		}))(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
			sent++
			return req, nil
		}))
		rsp, err := svc.Call(t.Context(), 40)
		require.NoError(t, err)
		assert.Equal(t, 42, rsp, "the request of the second try")
		assert.Equal(t, 2, sent)
		assert.Equal(t, []int{41}, own.discarded)
		assert.Equal(t, 1, own.ended)
	})
}

// resendOfOne counts in its request, and returns false after two attempts.
type resendOfOne struct {
	layer.BaseProtocol[int, int]
	next      int
	ended     int
	discarded []int
}

func (r *resendOfOne) Replay(req int, _ int64) layer.Replay[int] {
	r.next = req
	return r
}

func (r *resendOfOne) Next() (int, bool) {
	r.next++
	return r.next, true
}

func (r *resendOfOne) End()          { r.ended++ }
func (*resendOfOne) Whole() bool     { return true }
func (r *resendOfOne) Drain(rsp int) { r.discarded = append(r.discarded, rsp) }

func (r *resendOfOne) RetryAfter(rsp int, _ error) (time.Duration, bool) {
	if rsp > 41 {
		return -1, true
	}
	return 0, false
}
