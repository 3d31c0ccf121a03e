package balance

import (
	"errors"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Event is a change of a balancer that an operator wants to know: see [Config].
type Event struct {
	Kind   EventKind
	Target string
	ID     resolve.ID // the endpoint; the zero value for TargetDown and TargetUp
	Err    error      // why, for EndpointDown, EndpointEjected and TargetDown: an [EjectedError] or another error
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of Event. A busy endpoint, which rejects requests because of a limit, is not down.
const (
	EndpointDown    EventKind = iota + 1 // cannot be reached, or its breaker is open
	EndpointEjected                      // outlier detection has ejected it
	EndpointUp                           // it is back after one of the above
	TargetDown                           // no endpoint is ready
	TargetUp                             // an endpoint is ready, at first or again
)

// String returns a text for a log message, such as "endpoint ejected".
func (k EventKind) String() string {
	if k < EndpointDown || k > TargetUp {
		return "unknown event"
	}
	return [...]string{"endpoint down", "endpoint ejected", "endpoint up", "target down", "target up"}[k-1]
}

// maxEvents is the largest number of events that wait for Config.OnEvent.
const maxEvents = 1000

// events holds one balancer's events. The methods must be called with the mutex of the balancer
// held.
type events struct {
	f           func(Event) // may be nil
	target      string      // the target of every event
	waiting     []Event     // events that f has not got yet
	running     bool        // a goroutine calls f
	targetState             // keeps a second TargetDown or TargetUp from following the first
}

// targetState is what the last event said about the whole target.
type targetState uint8

// Before the first answer of the resolver, a target is neither down nor up.
const (
	notKnown targetState = iota
	targetIsDown
	targetIsUp
)

// add adds e to the events that wait for the function. It drops e if too many wait.
func (x *events) add(e Event) {
	if x.f != nil && len(x.waiting) < maxEvents {
		e.Target = x.target
		x.waiting = append(x.waiting, e)
	}
}

// noteDown adds an event for n, which has become unready or ejected for the given reason, unless n is
// only busy.
func (b *Balancer[Req, Rsp]) noteDown(n *node[Req, Rsp], reason error) {
	// Counted once, and not for an endpoint that is only at its limit.
	if n.isDown || isBusy(reason) {
		// Each endpoint is reported once until it is up again.
		return
	}
	n.isDown = true
	b.down++
	// An ejection is reported as such, because the endpoint itself may still answer.
	kind := EndpointDown
	if _, ok := errors.AsType[*EjectedError](reason); ok {
		kind = EndpointEjected
	}
	b.events.add(Event{Kind: kind, ID: n.id, Err: reason})
}

// isBusy reports whether reason may only mean that the endpoint is busy, as a limit's rejection does:
// it is neither a breaker's nor caused by a failure, and the endpoint is not closed.
func isBusy(reason error) bool {
	// An error of another type is a plain poll result, or has details about a failure.
	e, ok := errors.AsType[*layer.Error](reason)
	if !ok {
		return !hasDetails(reason)
	}
	return e.Err == nil && !isByBreaker(reason) && !errors.Is(reason, layer.ErrClosed)
}

// hasDetails returns false for the result of a poll that reports only that the service is not ready.
func hasDetails(reason error) bool { return reason.Error() != layer.ErrNotReady.Error() }

// noteUp adds an event for n, which is ready again, if there was one that it is down.
func (b *Balancer[Req, Rsp]) noteUp(n *node[Req, Rsp]) {
	if n.isDown {
		n.isDown = false
		b.down--
		b.events.add(Event{Kind: EndpointUp, ID: n.id})
	}
}

// noteTarget adds an event if the target has become ready, or has lost its last ready endpoint. It also
// starts the goroutine that calls the function, if events wait. It is called after each change to the
// endpoints, with mu held.
func (b *Balancer[Req, Rsp]) noteTarget() {
	// Fail-fast depends on the same changes.
	b.noteFailed()
	x := &b.events
	if x.f == nil {
		return
	}
	switch isUp := b.readyLen() > 0; {
	case isUp && x.targetState != targetIsUp:
		x.targetState = targetIsUp
		x.add(Event{Kind: TargetUp})
	case !isUp && x.targetState != targetIsDown:
		// While the target is resolved for the first time, it is not down.
		if err := b.whyDown(); err != nil {
			x.targetState = targetIsDown
			x.add(Event{Kind: TargetDown, Err: err})
		}
	}
	// One goroutine at a time calls the function, so that events stay in order.
	if len(x.waiting) > 0 && !x.running {
		x.running = true
		go b.deliver()
	}
}

// whyDown returns why no endpoint is ready, for TargetDown. It returns nil while the resolver has
// given neither an answer nor an error yet, because waiting is no failure.
func (b *Balancer[Req, Rsp]) whyDown() error {
	switch b.state { //nolint:exhaustive // the other states have endpoints
	case resolve.StatePending:
		return b.err
	case resolve.StateEmpty:
		return withCause(discover.ErrNoEndpoints, b.err)
	case resolve.StateDoesNotExist:
		return withCause(discover.ErrDoesNotExist, b.err)
	}
	// There are endpoints, but none is ready: the reason of the one that failed last tells most.
	if n := b.lastUnready; n != nil {
		return n.reason
	}
	return discover.ErrNoEndpoints
}

// deliver calls the function for each waiting event, until none is left. It is the function of a
// goroutine.
func (b *Balancer[Req, Rsp]) deliver() {
	for {
		b.mu.Lock()
		next := b.events.waiting
		b.events.waiting = nil
		// running is cleared with mu held, so that no event is added in between without a goroutine.
		if len(next) == 0 {
			b.events.running = false
		}
		b.mu.Unlock()
		if len(next) == 0 {
			return
		}
		for _, e := range next {
			// A panic of the function loses one event only.
			_ = panics.Contain(func() { b.events.f(e) })
		}
	}
}
