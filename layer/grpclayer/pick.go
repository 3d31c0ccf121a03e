package grpclayer

import (
	"errors"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// picker is what gRPC asks for each call. All pickers of a balancer are alike;
// a new one makes waiting calls ask again.
type picker struct{ *towerBalancer }

// Pick never waits.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	picked, err := p.balance.Call(info.Ctx, info)
	a := attemptFor(info)
	if err != nil {
		return balancer.PickResult{}, p.refuse(info, a, err)
	}
	if a != nil {
		a.refusal.Store(nil)
		a.picked.Store(picked)
		picked.attempt = a
	}
	return balancer.PickResult{SubConn: picked.conn.sub, Done: picked.done}, nil
}

// refuse says what becomes of a call that was refused. gRPC has it wait for
// the next picker where it is told that there is no connection yet; where it is
// told anything else, only if it is to wait for ready. A status ends it.
func (t *towerBalancer) refuse(info balancer.PickInfo, a *attempt, err error) error {
	if a != nil {
		a.refusal.Store(&refusal{err})
	}
	if errors.Is(err, layer.ErrClosed) {
		return status.Error(codes.Unavailable, err.Error())
	}
	// From here on something may become ready that is not in time for this
	// picker: whoever waits is told by the next.
	select {
	case t.refused <- struct{}{}:
	default:
	}
	if info.Ctx.Err() != nil || t.coming() {
		return balancer.ErrNoSubConnAvailable
	}
	return quoted{err}
}

// coming reports whether an endpoint is about to be ready: it is being
// connected and did not fail, or the balancer does not know yet that it is
// ready.
func (t *towerBalancer) coming() bool {
	for _, m := range *t.current.Load() {
		state := m.conn.state()
		if state == connecting || state == connected && layer.Poll(m.service) == nil {
			return true
		}
	}
	return false
}

// pause is the least time between two pickers for calls that wait.
const pause = time.Millisecond

// republish tells calls that wait, once something is ready again.
func (t *towerBalancer) republish() {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.refused:
		}
		_ = t.balance.Ready(t.ctx) // closed or ready, there is something to tell
		t.publish()
		if backoff.Sleep(t.ctx, pause) != nil {
			return
		}
	}
}

// publish gives gRPC a new picker, and the state of the whole.
func (t *towerBalancer) publish() {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if t.ctx.Err() == nil {
		t.cc.UpdateState(balancer.State{ConnectivityState: t.connectivity(), Picker: &picker{t}})
	}
}

// connectivity is that of the best connection, as gRPC sees it.
func (t *towerBalancer) connectivity() connectivity.State {
	whole := connectivity.TransientFailure
	for _, m := range *t.current.Load() {
		switch m.conn.state() {
		case connected:
			return connectivity.Ready
		case connecting:
			whole = connectivity.Connecting
		case failing, gone:
		}
	}
	return whole
}
