package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestEndpointModel drives the HTTP/1.1 connections of an Endpoint
// with requests that begin, end, are cancelled and break off, with a network
// that comes and goes, and with time; and compares them with plain numbers.
func TestEndpointModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) poolStep {
		return poolStep{kind: rapid.IntRange(0, 7).Draw(rt, "kind"), n: rapid.IntRange(0, 4000).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = drivePool(steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

type poolStep struct{ kind, n int }

const (
	modelConns = 3
	modelIdle  = 3 * time.Second
	modelRetry = time.Second
)

// poolModel is what the pool should be.
type poolModel struct {
	e   *Endpoint
	net *switched
	srv *holding

	flying []*flight
	idle   []time.Time // since when, the longest first
	away   bool
	down   bool
	retry  time.Time
}

// flight is a request that the server holds.
type flight struct {
	cancel context.CancelFunc
	answer chan error
	finish chan struct{} // closed to make the server answer
}

// holding is a server that delays its responses and can close its connections.
type holding struct {
	mu      sync.Mutex
	arrived []chan struct{} // the finish of requests, in the order of arrival
	conns   map[net.Conn]bool
}

func (h *holding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	finish := make(chan struct{})
	h.mu.Lock()
	h.arrived = append(h.arrived, finish)
	h.mu.Unlock()
	select {
	case <-finish:
		say(w, "done")
	case <-r.Context().Done():
		panic(http.ErrAbortHandler) // or the server would answer all the same
	}
}

func (h *holding) track(c net.Conn, s http.ConnState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s {
	case http.StateNew:
		h.conns[c] = true
	case http.StateClosed:
		delete(h.conns, c)
	default:
	}
}

func (h *holding) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		c.Close()
	}
}

func drivePool(steps []poolStep) (problem string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer synctest.Wait()
	defer cancel()
	h := newHost(ctx, 0)
	srv := &holding{conns: make(map[net.Conn]bool)}
	h.srv.Handler, h.srv.ConnState = srv, srv.track
	m := &poolModel{srv: srv, net: &switched{network: &h.network}}
	m.e = NewEndpoint(ctx, "10.0.0.1:80", WithMaxConns(modelConns), WithIdleTimeout(modelIdle), WithDialContext(m.net.DialContext),
		WithBackoff(layer.Backoff{Min: modelRetry, Max: modelRetry}))
	for i, s := range steps {
		if problem = m.step(ctx, s); problem == "" {
			problem = m.compare()
		}
		if problem != "" {
			return fmt.Sprintf("after step %d, %v: %s", i, s, problem)
		}
	}
	return ""
}

func (m *poolModel) step(ctx context.Context, s poolStep) string {
	switch {
	case s.kind <= 2:
		return m.begin(ctx)
	case s.kind == 3 && len(m.flying) > 0:
		return m.finish(s.n%len(m.flying), false)
	case s.kind == 4 && len(m.flying) > 0:
		return m.finish(s.n%len(m.flying), true)
	case s.kind == 5:
		time.Sleep(time.Duration(s.n) * time.Millisecond)
		synctest.Wait()
		m.idle = slices.DeleteFunc(m.idle, func(since time.Time) bool { return time.Since(since) >= modelIdle })
	case s.kind == 6:
		m.away = !m.away
		m.net.set(nil)
		if m.away {
			m.net.set(syscall.ECONNREFUSED)
		}
	case s.kind == 7 && s.n < 1000 && len(m.idle) == 0: // an idle connection that is lost is found out by the next request
		return m.cut()
	}
	return ""
}

func (m *poolModel) begin(ctx context.Context) string {
	want := error(nil)
	switch {
	case len(m.idle) > 0:
		m.idle = m.idle[:len(m.idle)-1]
	case len(m.flying) == modelConns, m.down && time.Now().Before(m.retry):
		want = layer.ErrNotReady
	case m.away:
		m.down, m.retry = true, time.Now().Add(modelRetry)
		want = layer.ErrNotReady
	default:
		m.down = false
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &flight{cancel: cancel, answer: make(chan error, 1)}
	go func() { f.answer <- post(ctx, m.e) }()
	synctest.Wait()
	select {
	case err := <-f.answer:
		cancel()
		if want == nil || !errors.Is(err, want) {
			return fmt.Sprintf("a request ended with %v, want %v", err, want)
		}
		return ""
	default:
	}
	if want != nil {
		cancel()
		return "a request was taken that should have been refused"
	}
	f.finish = m.srv.arrived[len(m.srv.arrived)-1]
	m.flying = append(m.flying, f)
	return ""
}

// post sends a request that the Endpoint does not send twice.
func post(ctx context.Context, e *Endpoint) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/", nil)
	if err != nil {
		return err
	}
	rsp, err := e.Call(ctx, req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	_, err = io.Copy(io.Discard, rsp.Body)
	return err
}

// finish ends a request: the server answers, or its caller goes.
func (m *poolModel) finish(i int, cancelled bool) string {
	f := m.flying[i]
	m.flying = slices.Delete(m.flying, i, i+1)
	if cancelled {
		f.cancel()
	} else {
		close(f.finish)
	}
	synctest.Wait()
	err := <-f.answer
	f.cancel()
	switch {
	case cancelled && !errors.Is(err, context.Canceled):
		return fmt.Sprintf("a request that was cancelled ended with %v", err)
	case cancelled:
		return ""
	case err != nil:
		return fmt.Sprintf("a request ended with %v", err)
	}
	m.idle = append(m.idle, time.Now())
	return ""
}

// cut closes every connection of the server.
func (m *poolModel) cut() string {
	m.srv.cut()
	synctest.Wait()
	for _, f := range m.flying {
		if err := <-f.answer; err == nil || errors.Is(err, layer.ErrNotReady) {
			return fmt.Sprintf("a request that was broken off ended with %v", err)
		}
		f.cancel()
	}
	m.flying, m.idle = nil, nil
	return ""
}

func (m *poolModel) compare() string {
	s := m.e.Describe().State
	for key, want := range map[string]int{
		"connections": len(m.flying) + len(m.idle), "idle": len(m.idle), "in_flight": len(m.flying),
	} {
		if got := s.Get(key); got != want {
			return fmt.Sprintf("%s is %v, want %d", key, got, want)
		}
	}
	ready := layer.Poll[*http.Request, *http.Response](m.e) == nil
	if want := len(m.idle) > 0 || !m.down && len(m.flying) < modelConns; ready != want {
		return fmt.Sprintf("ready is %v, want %v", ready, want)
	}
	return ""
}
