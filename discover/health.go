package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/layer"
)

// HealthCheck checks the endpoint t by sending requests to svc, which is the endpoint's service.
// A HealthCheck returns nil if the endpoint is healthy. It should return when ctx ends. A panic
// counts as a failed check.
type HealthCheck[Req, Rsp any] func(ctx context.Context, t Target, svc layer.Service[Req, Rsp]) error

// HealthPolicy configures [WithHealthCheck]. Fields that are 0 use their defaults.
type HealthPolicy struct {
	Interval  time.Duration // pause between two checks, ± 10 % at random: default 5 s, at least 1 ms
	Timeout   time.Duration // time limit of one check: default 1 s
	Healthy   int           // successes in a row after which an endpoint is healthy: default 1
	Unhealthy int           // failures in a row after which an endpoint is unhealthy: default 3

	// OnChange is called when an endpoint becomes healthy, with nil, and when it becomes unhealthy, with
	// the reason, also if its first check fails. The checks of the endpoint wait for it. Nil means no calls.
	OnChange func(t Target, err error)
}

// Validate returns an error that names the field that is out of range, or nil.
func (p HealthPolicy) Validate() error {
	switch {
	case p.Interval != 0 && p.Interval < time.Millisecond:
		return fmt.Errorf("HealthPolicy.Interval is %v, must be at least 1ms", p.Interval)
	case p.Timeout < 0:
		return fmt.Errorf("HealthPolicy.Timeout is %v, must be at least 0", p.Timeout)
	case p.Healthy < 0:
		return fmt.Errorf("HealthPolicy.Healthy is %d, must be at least 0", p.Healthy)
	case p.Unhealthy < 0:
		return fmt.Errorf("HealthPolicy.Unhealthy is %d, must be at least 0", p.Unhealthy)
	}
	return nil
}

// WithHealthCheck returns a MakeService that calls mk and checks each new endpoint in the
// background. An unhealthy endpoint rejects requests, so that a balancer uses other endpoints. A
// new endpoint is unhealthy until its first checks succeed: see [HealthPolicy].
//
// While none of a target's endpoints is healthy, all of them admit requests, because the check
// may be wrong and requests may succeed.
//
// An endpoint's checks run on a goroutine that ends when the endpoint is removed, even if it
// still has open responses. WithHealthCheck panics if mk or check is nil or p is invalid.
func WithHealthCheck[Req, Rsp any](mk MakeService[Req, Rsp], check HealthCheck[Req, Rsp], p HealthPolicy) MakeService[Req, Rsp] {
	switch {
	case mk == nil:
		panic("discover: WithHealthCheck: nil MakeService")
	case check == nil:
		panic("discover: WithHealthCheck: nil HealthCheck")
	}
	if err := p.Validate(); err != nil {
		panic("discover: " + err.Error())
	}
	// Zero fields get their defaults after the check, so that Validate sees what the caller wrote.
	p.Interval, p.Timeout = cmp.Or(p.Interval, 5*time.Second), cmp.Or(p.Timeout, time.Second)
	p.Healthy, p.Unhealthy = cmp.Or(p.Healthy, 1), cmp.Or(p.Unhealthy, 3)
	// One MakeService may serve several targets. Only endpoints of one target count together.
	groups := new(share.Group[string, *healthGroup])
	return func(ctx context.Context, t Target) layer.Service[Req, Rsp] {
		inner := mk(ctx, t)
		if inner == nil {
			return nil
		}
		// The group needs no end: nothing runs for it.
		group, leave := groups.Use(t.Name, func() (*healthGroup, func()) { return new(healthGroup), func() {} })
		c := &checked[Req, Rsp]{Service: inner, policy: p, group: group, endpoint: t.Endpoint.Addr.String()}
		if c.policy.OnChange == nil {
			c.policy.OnChange = func(Target, error) {}
		}
		c.setReason(errors.New("not checked yet"))
		memberCtx, _ := ctx.Value(memberCtxKey{}).(context.Context) // nil if the caller is not Endpoints
		// ctx lasts until the last response has ended, but the checks end when the endpoint is removed.
		go c.run(cmp.Or(memberCtx, ctx), check, t, leave)
		return c
	}
}

// healthGroup counts the healthy endpoints of one target. All of them share it, because each admits
// requests while none is healthy. It wakes goroutines after changes.
type healthGroup struct {
	healthy atomic.Int64     // number of healthy endpoints
	changed notify.Broadcast // wakes the goroutines that wait for a change of healthy
}

// checked is the service of one endpoint with a health check.
type checked[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	policy   HealthPolicy
	group    *healthGroup
	endpoint string
	reason   atomic.Pointer[layer.Error] // nil while the endpoint is healthy
	checks   atomic.Int64                // number of finished checks
}

// setReason makes the endpoint reject requests because of err.
func (c *checked[Req, Rsp]) setReason(err error) {
	c.reason.Store(&layer.Error{
		Layer: "health_check", Endpoint: c.endpoint, Kind: layer.ErrNotReady, Reason: "unhealthy", Err: err,
	})
}

// run checks the endpoint every Interval until ctx ends. After that, run makes the endpoint
// unhealthy. It then calls leave, which releases the healthGroup that all endpoints of the target
// share.
func (c *checked[Req, Rsp]) run(ctx context.Context, check HealthCheck[Req, Rsp], t Target, leave func()) {
	defer leave()
	// The group must not count a removed endpoint.
	defer c.become(nil, false) // unhealthy, without an error
	row := 0                   // checks in a row that contradict the state
	for ctx.Err() == nil {
		err := panics.Do("HealthCheck", func() error {
			limited, cancel := context.WithTimeout(ctx, c.policy.Timeout)
			defer cancel()
			return check(limited, t, c.Service)
		})
		// The endpoint was removed during the check, so its result does not matter.
		if ctx.Err() != nil {
			return
		}
		first := c.checks.Add(1) == 1
		healthy := c.reason.Load() == nil
		// The threshold depends on the state that would be left.
		threshold := c.policy.Healthy
		if healthy {
			threshold = c.policy.Unhealthy
		}
		// A check that confirms the state ends the row.
		if passed := err == nil; passed == healthy {
			row = 0
		} else {
			row++
		}
		if row >= threshold {
			row = 0
			c.become(err, !healthy)
			c.policy.OnChange(t, err)
		} else if !healthy && err != nil {
			// Still unhealthy: Describe and the rejections show the latest reason.
			c.setReason(err)
			// OnChange is documented to be called for a first check that fails.
			if first {
				c.policy.OnChange(t, err)
			}
		}
		// Without jitter, the checks of many clients would reach an endpoint at the same time.
		jitter := 0.9 + 0.2*rand.Float64()
		// The limit avoids an overflow. At the end of ctx, the loop's condition ends the loop.
		_ = backoff.Sleep(ctx, time.Duration(jitter*float64(min(c.policy.Interval, math.MaxInt64/2))))
	}
}

// become makes the endpoint healthy or unhealthy, if it is not so already, and counts that in the
// group. err is why the endpoint becomes unhealthy.
func (c *checked[Req, Rsp]) become(err error, healthy bool) {
	wasHealthy := c.reason.Load() == nil
	switch {
	case healthy && !wasHealthy:
		c.reason.Store(nil)
		c.group.healthy.Add(1)
	case !healthy && wasHealthy:
		c.setReason(err)
		c.group.healthy.Add(-1)
	default:
		return
	}
	// Wakes the requests that wait in Ready of any endpoint: the group as a whole may admit now.
	c.group.changed.Wake()
}

// admits reports whether the endpoint admits requests. The endpoint admits requests if it is
// healthy, or if no endpoint of its target is healthy.
func (c *checked[Req, Rsp]) admits() bool {
	return c.reason.Load() == nil || c.group.healthy.Load() == 0
}

// Ready waits until the endpoint admits requests and its service is ready. The endpoint admits
// requests if it is healthy, or if no endpoint of its target is healthy.
func (c *checked[Req, Rsp]) Ready(ctx context.Context) error {
	// Both conditions must hold at the same time, so they are checked in turn.
	for {
		if err := c.group.changed.Wait(ctx, c.admits); err != nil {
			return err
		}
		if err := c.Service.Ready(ctx); err != nil {
			return err
		}
		// It may have become unhealthy while the service was not ready.
		if c.admits() {
			return nil
		}
	}
}

// Call sends req to the endpoint if it admits requests, and rejects it otherwise.
func (c *checked[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	// A request whose context has ended would count against the endpoint.
	if ctx.Err() != nil {
		return rsp, &layer.Error{
			Layer: "health_check", Endpoint: c.endpoint, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	// The reason is read once: admits may change between two reads.
	if rejection := c.reason.Load(); rejection != nil && !c.admits() {
		return rsp, rejection
	}
	return c.Service.Call(ctx, req)
}

// Next returns the endpoint's own service.
func (c *checked[Req, Rsp]) Next() layer.Service[Req, Rsp] { return c.Service }

// Describe returns whether the endpoint is healthy, the number of checks and the last error.
func (c *checked[Req, Rsp]) Describe() layer.Node {
	// reason is nil while the endpoint is healthy.
	state := layer.State{{Key: "healthy", Value: true}, {Key: "checks", Value: c.checks.Load()}}
	if rejection := c.reason.Load(); rejection != nil {
		state[0].Value = false
		if rejection.Err != nil {
			state = append(state, layer.Attr{Key: "err", Value: rejection.Err.Error()})
		}
	}
	return layer.Node{Name: "health_check", State: state}
}
