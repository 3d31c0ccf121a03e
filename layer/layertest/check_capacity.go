package layertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

const crowd = 1000 // goroutines in a storm, unless the subject says otherwise

// storm is invariant 1: a thousand goroutines call, wait and leave at once.
// The race detector looks for data races; the check, for answers that reach
// the wrong caller and for requests that are served twice.
func storm[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	all := make([]*probe[Req, Rsp], 0, e.crowd)
	var fell atomic.Pointer[panicked]
	ask := func(ready func() error) error {
		err := guarded(ready)
		if p, ok := errors.AsType[*panicked](err); ok {
			fell.Store(p)
		}
		return err
	}
	for i := range e.crowd {
		ctx, cancel := context.WithCancelCause(r.ctx)
		p := r.call(ctx, plan{takes: time.Microsecond})
		all = append(all, p)
		go func() {
			defer cancel(nil)
			switch i % 4 {
			case 1:
				cancel(errCancel)
			case 2:
				cancel(errors.Join(ask(func() error { return r.svc.Ready(ctx) }), errCancel))
			case 3:
				ask(func() error { return layer.Poll(r.svc) }) //nolint:errcheck // only a part of the storm
			}
			<-p.done
		}()
	}
	// Time enough for all of them, and for what a queue may pause.
	time.Sleep(time.Second)
	settle()
	if p := fell.Load(); p != nil {
		return fmt.Errorf("Ready: %w", p)
	}
	for i, p := range all {
		if err := r.weathered(p, i%4); err != nil {
			return err
		}
	}
	return nil
}

// weathered judges one call of a storm. Whether it was admitted is a matter of
// chance, but it was so once, and its answer is its own.
func (r *rig[Req, Rsp]) weathered(p *probe[Req, Rsp], kind int) error {
	left := kind == 1 || kind == 2 // its caller may have gone too soon
	switch {
	case !p.returned():
		return errors.New("a call is still there a second after the storm")
	case p.served() > 1:
		return fmt.Errorf("call %d was served %d times", p.id, p.served())
	case errors.Is(p.err, layer.ErrNotReady):
		return r.refusedInStorm(p, left)
	case left && p.failed():
		return nil
	}
	if err := p.well(r.bodies && r.layer); err != nil {
		return err
	}
	if r.layer && p.served() == 0 {
		return fmt.Errorf("call %d was answered, but never served", p.id)
	}
	return nil
}

func (r *rig[Req, Rsp]) refusedInStorm(p *probe[Req, Rsp], left bool) error {
	if !left && r.layer && !r.own() {
		return fmt.Errorf("a call was refused, though without a limit: %w", p.err)
	}
	var cause error
	if left && errors.Is(p.err, layer.ErrClosed) {
		// One of several services behind it may be closed.
		cause = layer.ErrClosed
	}
	return r.refused(p, cause)
}

// peakWithinLimit is invariant 8: the calls that are not over are never more
// than the limit, whatever becomes of them. Without a limit, nothing holds
// them back.
func peakWithinLimit[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if r.limit == 0 {
		for range e.crowd {
			r.call(r.ctx, plan{holds: true})
		}
		settle()
		if n := r.far.InFlight(); n < e.crowd {
			return fmt.Errorf("%d of %d calls get through, though no limit is declared", n, e.crowd)
		}
		return nil
	}
	// A crowd neither reaches a larger limit nor shows one of nearly its size.
	for range r.limit - e.crowd/2 {
		r.call(r.ctx, plan{holds: true})
	}
	settle()
	for i := range e.crowd {
		rng := rand.New(rand.NewPCG(uint64(i), 8))
		go func() {
			for range 20 {
				r.stormy(rng)
				time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
			}
		}()
	}
	time.Sleep(time.Minute)
	settle()
	switch n := r.far.highest(); {
	case n > r.limit:
		return fmt.Errorf("%d in flight, the limit is %d", n, r.limit)
	case n < r.limit:
		// A storm that does not reach the limit proves nothing about it.
		return fmt.Errorf("never more than %d in flight, the limit is %d", n, r.limit)
	}
	return nil
}

// stormy makes one call that ends in one of the ways in which calls end.
func (r *rig[Req, Rsp]) stormy(rng *rand.Rand) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	pl := plan{takes: time.Duration(1+rng.IntN(20)) * time.Microsecond, reads: time.Duration(rng.IntN(20)) * time.Microsecond}
	switch rng.IntN(5) {
	case 1:
		pl.fails = errPlanned
	case 2:
		pl.panics = errPlanned
	case 3:
		pl.exits = true
	case 4:
		// An open body would end for the layer and the inner service at the
		// same time, in an unknown order.
		pl.bare = true
		patience := time.Duration(rng.IntN(20)) * time.Microsecond
		go func() {
			time.Sleep(patience)
			cancel(errCancel)
		}()
	}
	<-r.call(ctx, pl).done
}

var errPlanned = errors.New("the inner service fails as planned")

// conserved is invariant 9: after calls have ended in every way there is, the
// whole capacity is back, and not more than that.
func conserved[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	rng := rand.New(rand.NewPCG(9, 9))
	for round := range 50 {
		ctx, cancel := context.WithCancelCause(r.ctx)
		all := make([]*probe[Req, Rsp], min(max(2*(r.limit+r.queue), 8), e.crowd))
		for i := range all {
			all[i] = r.call(ctx, endings[rng.IntN(len(endings))])
		}
		if round%2 == 0 {
			// The caller goes while they are on their way.
			time.Sleep(time.Duration(rng.IntN(int(time.Millisecond))))
			cancel(errCancel)
		}
		settle()
		for _, p := range all {
			r.finish(p, rng)
		}
		// Whatever was abandoned ends with its context.
		cancel(errCancel)
		settle()
	}
	if !r.layer {
		time.Sleep(time.Minute)
	}
	if err := r.serves(); err != nil {
		return fmt.Errorf("after the calls had ended, however they did: %w", err)
	}
	if r.layer {
		if err := r.exact(); err != nil {
			return fmt.Errorf("after the calls had ended, however they did: %w", err)
		}
	}
	return nil
}

// endings are the ways in which a call ends by itself. Those with keep leave
// the body to finish.
var endings = []plan{
	{}, {}, {bare: true}, {holds: true}, {keep: true}, {keep: true}, {keep: true, breaks: errPlanned},
	{fails: errPlanned}, {panics: errPlanned}, {exits: true},
}

// finish drains, half reads, closes or abandons the body that was left to it.
func (r *rig[Req, Rsp]) finish(p *probe[Req, Rsp], rng *rand.Rand) {
	if !p.returned() || !p.keep {
		return
	}
	switch rng.IntN(4) {
	case 0:
		p.readAll()
	case 1:
		p.drain()
	case 2:
		p.readSome()
		p.close()
	}
}
