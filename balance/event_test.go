package balance_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
)

// recording has the events of a balancer, as texts.
type recording struct {
	mu  sync.Mutex
	all []string
}

func (r *recording) option() option {
	return balance.WithEvents[*response](func(e balance.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		text := e.Kind.String()
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		r.all = append(r.all, text)
	})
}

// take returns the events since the last call.
func (r *recording) take() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

// The events are those that an operator wants to know, in their order.
func TestEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var r recording
		detection := balance.OutlierDetection{ConsecutiveFailures: 3, MinReady: 0.01, BaseEjectionTime: time.Second}
		p, ss := newPool(t, append(roundRobin(detection), r.option())...), servers(2)
		ss[0].fault, ss[1].fault = errRefused, errRefused
		require.Empty(t, r.take(), "the target is not resolved yet")
		p.add(ss...)
		require.Equal(t, []string{"target up"}, r.take())

		ss[0].open(false)
		p.sends(t, 2)
		down := r.take()
		require.Len(t, down, 1)
		require.Contains(t, down[0], "endpoint down: ")
		ss[0].open(true)
		require.Equal(t, []string{"endpoint up"}, r.take())

		ss[0].fail(always)
		p.sends(t, 8)
		ejected := r.take()
		require.Len(t, ejected, 1)
		require.Contains(t, ejected[0], "endpoint ejected: ")
		require.Contains(t, ejected[0], "3 failures in a row")
		ss[1].open(false)
		p.sends(t, 1)
		require.Contains(t, fmt.Sprint(r.take()), "endpoint up", "all ejections end if no endpoint is ready")

		ss[0].fail(never)
		ss[0].open(false)
		p.sends(t, 1)
		require.Contains(t, fmt.Sprint(r.take()), "target down: ")
		ss[0].open(true)
		require.Equal(t, []string{"endpoint up", "target up"}, r.take())
	})
}

// A busy endpoint is not down.
func TestEventsBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var r recording
		p, ss := newPool(t, r.option()), servers(1)
		hold := make(chan struct{})
		ss[0].serve = func(context.Context, string) (*response, error) {
			<-hold
			return body("x"), nil
		}
		p.add(ss...)
		require.Equal(t, []string{"target up"}, r.take())
		done := make(chan error)
		go func() { done <- p.send(t.Context()) }()
		synctest.Wait()
		ss[0].open(false)
		require.Error(t, p.send(t.Context()))
		close(hold)
		require.NoError(t, <-done)
		require.Error(t, p.send(t.Context()), "its limit may be shared with others")
		for _, e := range r.take() {
			require.NotContains(t, e, "endpoint down")
		}
		ss[0].open(true)
		synctest.Wait()
	})
}

// A slow function delays no change, and a panic of it does not end the process.
func TestEventsSlow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hold, calls := make(chan struct{}), 0
		p, ss := newPool(t, balance.WithEvents[*response](func(balance.Event) {
			calls++
			<-hold
			panic("event")
		})), servers(1)
		p.add(ss...)
		for range 1200 {
			ss[0].open(false)
			_ = p.send(t.Context())
			ss[0].open(true)
			synctest.Wait()
		}
		require.NoError(t, p.send(t.Context()))
		close(hold)
		synctest.Wait()
		require.Greater(t, calls, 500)
		require.LessOrEqual(t, calls, 1001)
	})
}
