package layertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/layer"
)

// The layers of this file are unusual and keep the contract. The checks must
// accept them.

type tracerKey struct{}

// traces adds a value to the context, and wraps errors.
func traces(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(context.WithValue(ctx, tracerKey{}, req.ID), req)
	if err != nil {
		err = fmt.Errorf("request %d: %w", req.ID, err)
	}
	return rsp, err
}

// buffered is a body that reads ahead.
type buffered struct {
	*bufio.Reader
	io.Closer
}

// buffers wraps the body in a buffered reader.
func buffers(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil || rsp.Body == nil {
		return rsp, err
	}
	again := *rsp
	again.Body = buffered{bufio.NewReader(rsp.Body), rsp.Body}
	return &again, nil
}

// whole reads the complete response before it returns, as a cache does.
func whole(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil || rsp.Body == nil {
		return rsp, err
	}
	defer rsp.Body.Close()
	data, err := io.ReadAll(rsp.Body)
	if err != nil {
		return nil, err
	}
	again := *rsp
	again.Body = io.NopCloser(bytes.NewReader(data))
	return &again, nil
}

// pools uses a sync.Pool, which drops items under the race detector.
func pools() Layer {
	pool := sync.Pool{New: func() any { return new([64]byte) }}
	l := calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		buf := pool.Get().(*[64]byte)
		defer pool.Put(buf)
		buf[0]++
		return next.Call(ctx, req)
	})
	l.NoAllocs = true
	return l
}

// rewrites sends and returns other messages.
func rewrites(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, &Request{ID: -req.ID})
	if err != nil {
		return nil, err
	}
	return &Response{ID: -rsp.ID, Body: rsp.Body}, nil
}

func rewriting() Layer {
	l := calling(rewrites)
	l.RewritesMessages = true
	return l
}

// marks sends a copy of the request with one more header.
func marks(next service, ctx context.Context, req *Request) (*Response, error) {
	again := *req
	again.Header = maps.Clone(req.Header)
	again.Header["via"] = "test"
	return next.Call(ctx, &again)
}

// retries calls again once after a rejection.
func retries(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed) && ctx.Err() == nil {
		rsp, err = next.Call(ctx, req)
	}
	return rsp, err
}

// guards recovers a panic and panics again.
func guards(next service, ctx context.Context, req *Request) (rsp *Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			panic(v)
		}
	}()
	return next.Call(ctx, req)
}

// linked calls with a context that it cancels at the end of the body.
func linked(next service, ctx context.Context, req *Request) (*Response, error) {
	own, cancel := context.WithCancelCause(ctx)
	rsp, err := next.Call(own, req)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return layer.AtEnd[*Response]()(ctx, rsp, canceler(func() { cancel(nil) })), nil
}

// spread calls one of several equal services, as a balancer does. A goroutine
// adds them.
func spread(ctx context.Context, next service) service {
	var endpoints atomic.Pointer[[]service]
	endpoints.Store(&[]service{next})
	go func() {
		endpoints.Store(&[]service{pass{next}, pass{next}, pass{next}})
		<-ctx.Done()
	}()
	var turn atomic.Int64
	pick := func() service {
		all := *endpoints.Load()
		return all[int(turn.Add(1))%len(all)]
	}
	return odd{
		call:  func(ctx context.Context, req *Request) (*Response, error) { return pick().Call(ctx, req) },
		ready: func(ctx context.Context) error { return pick().Ready(ctx) },
	}
}

// learner is ready until the inner service rejects a call. Then a goroutine waits
// for the inner service. It outlives the inner service, as a balancer does.
type learner struct {
	service
	ctx context.Context

	mu    sync.Mutex
	idle  bool
	moved chan struct{}
}

func learns(ctx context.Context, next service) service {
	return &learner{service: next, ctx: ctx, moved: make(chan struct{})}
}

func (l *learner) Call(ctx context.Context, req *Request) (*Response, error) {
	rsp, err := l.service.Call(ctx, req)
	if ctx.Err() != nil || !errors.Is(err, layer.ErrNotReady) {
		return rsp, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.idle {
		l.idle = true
		go l.wait()
	}
	return nil, reject(layer.ErrNotReady, nil)
}

func (l *learner) wait() {
	if l.service.Ready(l.ctx) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = false
	close(l.moved)
	l.moved = make(chan struct{})
}

func (l *learner) Ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		idle, moved := l.idle, l.moved
		l.mu.Unlock()
		if !idle {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// explains wraps the cause of ctx.
func explains(next service, ctx context.Context) error {
	if err := next.Ready(ctx); err != nil {
		return fmt.Errorf("endpoint 10.0.0.1:80: %w", err)
	}
	return nil
}

func TestRunUnusual(t *testing.T) {
	for name, spec := range map[string]Layer{
		"traces":   calling(traces),
		"buffers":  calling(buffers),
		"whole":    calling(whole),
		"pools":    pools(),
		"rewrites": rewriting(),
		"marks":    calling(marks),
		"retries":  calling(retries),
		"guards":   calling(guards),
		"linked":   calling(linked),
		"explains": asking(explains),
		"spread":   {New: spread},
		"learns":   {New: learns, OutlivesInner: true},
	} {
		t.Run(name, func(t *testing.T) { Run(t, short(spec)) })
	}
}
