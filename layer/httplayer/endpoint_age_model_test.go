package httplayer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestEndpointAgeKeepsItsModel does to connections that age what
// TestEndpointKeepsItsModel does to those that do not. It asks for what must
// hold whatever was replaced by what: a request is refused only where it would
// be without ageing.
func TestEndpointAgeKeepsItsModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) poolStep {
		return poolStep{kind: rapid.IntRange(0, 7).Draw(rt, "kind"), n: rapid.IntRange(0, 4000).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = driveAgeing(steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

type ageModel struct{ poolModel }

func driveAgeing(steps []poolStep) (problem string) {
	ctx, cancel := context.WithCancel(context.Background())
	h := newHost(ctx, 0)
	srv := &holding{conns: make(map[net.Conn]bool)}
	h.srv.Handler, h.srv.ConnState = srv, srv.track
	m := &ageModel{poolModel{srv: srv, net: &switched{network: &h.network}}}
	r := &roads{by: m.net.DialContext}
	m.e = NewEndpoint(ctx, "10.0.0.1:80", WithHTTP1(), WithMaxConns(modelConns), WithIdleTimeout(modelIdle), WithDialContext(r.DialContext),
		WithBackoff(layer.Backoff{Min: modelRetry, Max: modelRetry}), WithMaxConnAge(time.Second))
	for i, s := range steps {
		if s.kind <= 2 {
			problem = m.begin(ctx)
		} else {
			problem = m.step(ctx, s)
		}
		if problem == "" {
			problem = m.compare(r)
		}
		if problem != "" {
			problem = fmt.Sprintf("after step %d, %v: %s", i, s, problem)
			break
		}
	}
	cancel()
	synctest.Wait()
	for _, f := range m.flying {
		f.cancel()
	}
	synctest.Wait()
	if _, open, _ := r.state(); open != 0 && problem == "" {
		problem = fmt.Sprintf("%d connections are left", open)
	}
	return problem
}

func (m *ageModel) begin(ctx context.Context) string {
	before := m.e.Describe().State
	full := len(m.flying) == modelConns
	must := !full && (before.Get("idle") != 0 || !m.away && before.Get("link") != "down")
	never := full || before.Get("idle") == 0 && m.away
	ctx, cancel := context.WithCancel(ctx)
	f := &flight{cancel: cancel, answer: make(chan error, 1)}
	arrived := len(m.srv.arrived)
	go func() { f.answer <- get(ctx, m.e, "/") }()
	synctest.Wait()
	select {
	case err := <-f.answer:
		cancel()
		if must || !errors.Is(err, layer.ErrNotReady) {
			return fmt.Sprintf("a request ended with %v", err)
		}
		return ""
	default:
	}
	if never || len(m.srv.arrived) != arrived+1 {
		cancel()
		return "a request was taken that should have been refused"
	}
	f.finish = m.srv.arrived[arrived]
	m.flying = append(m.flying, f)
	return ""
}

func (m *ageModel) compare(r *roads) string {
	s := m.e.Describe().State
	_, open, _ := r.state()
	conns, idle := s.Get("connections").(int), s.Get("idle").(int)
	switch {
	case s.Get("in_flight") != len(m.flying):
		return fmt.Sprintf("in_flight is %v, want %d", s.Get("in_flight"), len(m.flying))
	case conns != open || conns != len(m.flying)+idle:
		return fmt.Sprintf("%d connections, %d of them idle; there are %d", conns, idle, open)
	case conns > modelConns+1:
		return fmt.Sprintf("%d connections are too many", conns)
	}
	ready := layer.Poll[*http.Request, *http.Response](m.e) == nil
	if want := len(m.flying) < modelConns && (idle > 0 || s.Get("link") != "down"); ready != want {
		return fmt.Sprintf("ready is %v, want %v", ready, want)
	}
	return ""
}
