package resolve

import (
	"context"
	"errors"
	"iter"
	"time"
)

const (
	zoneLabel = "zone"
	zoneMin   = 2
	zoneHold  = 30 * time.Second
	unit      = 10_000 // of weight
)

// ZonePolicy says when [Zone] leaves it at the endpoints of one zone. The zero
// value asks for two of them.
type ZonePolicy struct {
	// Label is the label that names an endpoint's zone; "" means "zone".
	Label string

	// Min is how many endpoints of the zone are enough. 0 or less means 2: one
	// alone would leave nothing to balance, and nothing when it fails.
	Min int

	// Share is the share of all callers that are in the zone, from 0 to 1. The
	// weight of the zone's endpoints must be at least that share of all weight,
	// or they would have more to do than the others do. An endpoint whose weight
	// is not said counts as one unit. 0 or less: not looked at. Kubernetes, which
	// reckons with the CPUs of a zone, lets its endpoints have a fifth more to
	// do: divide by 1.2 for that.
	Share float64

	// Hold is how long the zone's endpoints must have been enough, without a
	// break, before the others are let go again. 0 means 30 s: three periods of
	// a Kubernetes probe. Less than 0 means not at all.
	StabilizationWindow time.Duration
}

// Zone returns a Resolver that passes on, of what r says, the endpoints of one
// zone: those whose label says so. When these are not enough, as the policy has
// it, it passes on those of all zones, so that the load spreads over all.
//
// What is missing must be made up for at once, what is back need not be relied
// on at once: the others are added as soon as the zone's endpoints are not
// enough, and let go after Hold. So one endpoint that comes and goes does not
// make the set go back and forth. The first answer, and the first one after
// there was no endpoint at all, is judged at once.
//
// Endpoints without the label, or with an empty one, are always passed on, for
// if no zone took them for its own, nobody would use them; but they count
// neither as the zone's nor as others'. A zone of "" means that all is passed
// on.
//
// A resolver knows what there is, not what works: that the endpoints of the
// zone are there and refuse is nothing it sees. Put a layer.Failover over two
// balancers for that, one of Zone and one of r.
//
// An update of r becomes one update, the least that does it, or none, but for
// the first one after an error (see [Dedupe]); the end of Hold is one more.
// Errors are passed on as they are, and do not count: what was known stays in
// force, and Hold goes on. Put it outside of [ServeStale], to which the end of
// Hold would be an answer. When r ends, so does the sequence.
func Zone(r Resolver, zone string, p ZonePolicy) Resolver {
	requireResolvers(r)
	if zone == "" {
		return r
	}
	if p.Label == "" {
		p.Label = zoneLabel
	}
	if p.Min <= 0 {
		p.Min = zoneMin
	}
	if p.StabilizationWindow == 0 {
		p.StabilizationWindow = zoneHold
	}
	return zoned{ZonePolicy: p, source: r, zone: zone}
}

type zoned struct {
	ZonePolicy
	source Resolver
	zone   string
}

// Resolve passes on what the source says of target, as [Zone] tells.
func (z zoned) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		messages := make(chan message)
		defer startFeed(ctx, z.source, target, 0, messages).close()
		timer := time.NewTimer(0)
		timer.Stop()
		defer timer.Stop()
		s := spill{zoned: z, timer: timer}
		for ctx.Err() == nil {
			answer := true
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				s.wide, answer = false, false
			case m := <-messages:
				switch {
				case m.ended && !errors.Is(m.err, ErrUnresolvable):
					return
				case m.err != nil:
					s.lost = true
					if !yield(Update{}, m.err) || m.ended {
						return
					}
					continue
				}
				s.said.Apply(m.update)
			}
			if u, ok := s.news(answer); ok && !yield(u, nil) {
				return
			}
		}
	}
}

// spill is one stream of a Zone.
type spill struct {
	zoned
	said, known Set
	lost        bool        // the source, and has not answered since
	wide        bool        // all zones are used
	timer       *time.Timer // ends Hold
	waiting     bool        // for the timer; says nothing unless wide
}

// news returns what is to be passed on, if anything: after an answer, or after
// the end of Hold.
func (s *spill) news(answer bool) (Update, bool) {
	u, changed := part(&s.known, &s.said, s.choose())
	if answer {
		return confirm(&s.known, &s.lost, u, changed)
	}
	return u, changed
}

// choose returns what is to be used of what the source said.
func (s *spill) choose() []Endpoint {
	all := s.said.Endpoints()
	near, enough := s.near(all)
	switch {
	case !enough:
		s.wide, s.waiting = true, false // should the timer run still, it ends for nothing
	case s.known.Len() == 0 || s.StabilizationWindow < 0:
		s.wide = false
	case s.wide && !s.waiting:
		s.waiting = true
		s.timer.Reset(s.StabilizationWindow)
	}
	if s.wide {
		return all
	}
	return near
}

// near returns the endpoints of the zone and those of none, and whether they
// are enough.
func (s *spill) near(all []Endpoint) ([]Endpoint, bool) {
	near := make([]Endpoint, 0, len(all))
	var local int
	var ours, theirs float64
	for _, e := range all {
		weight := float64(e.Weight)
		if e.Weight == 0 {
			weight = unit
		}
		switch e.Labels[s.Label] {
		case "":
			near = append(near, e)
		case s.zone:
			near = append(near, e)
			local++
			ours += weight
		default:
			theirs += weight
		}
	}
	if local < s.Min {
		return near, false
	}
	// A quotient: 7 of 100 are a share of 0.07, but less than 0.07 times 100.
	return near, !(s.Share > 0) || ours/(ours+theirs) >= s.Share
}
