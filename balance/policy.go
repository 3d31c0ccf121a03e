package balance

import (
	"errors"
	"fmt"
	"time"
)

// Policy configures how a [Balancer] picks endpoints. The zero value uses all defaults. [New]
// panics if a value is out of range, see [Policy.Validate].
type Policy struct {
	// Picker is the rule that chooses an endpoint: the zero [Picker], [ConsistentHash],
	// [RoundRobin], [Random], or a rule of the application: [Custom].
	Picker Picker

	// Cost is the rule for the cost of an endpoint: [EWMA] or [LeastRequest].
	Cost Cost

	// Sample determines when a response's latency is measured. The default is [SampleFirstByte].
	Sample Sample

	// Decay is the time constant of the moving average of latencies, and that with which old
	// latencies age towards the median. 0 means 10 s. Another value is at least 1 ms. With little
	// traffic, the time constant is longer: at least three requests per endpoint.
	Decay time.Duration

	// Penalty is the latency that a failure costs: see "Failures" in the package documentation. It
	// replaces a doubted endpoint's latency. The cost of an endpoint with a higher error rate than
	// its peers increases by the difference times Penalty. 0 means twenty times the median
	// latency, but at least 20 ms and at most 5 s, which linkerd's load biaser always uses. With a
	// negative value, failures do not move load.
	Penalty time.Duration

	// SlowStart is the time in which the weight of a new endpoint grows from a tenth to its
	// full value, for services with cold caches. 0 means no slow start. During a slow
	// start, latencies age ten times as fast. A slow start begins when an endpoint becomes
	// ready for the first time, or again after it was not ready for at least SlowStart. An
	// ejection does not cause a slow start.
	SlowStart time.Duration

	// Zone is the zone of the balancer, which it prefers. An endpoint is in another zone if its
	// Locality, or without it the label "zone", is missing or differs. Such an endpoint gets a request
	// only if it would still be the cheapest of all with three more requests in flight. "" means that
	// zones are ignored.
	//
	// Zone applies among the endpoints of one priority whose localities are not weighted. A zone
	// with few endpoints is not overloaded, because requests leave it when they are busy. If
	// requests should leave the zone only when its endpoints fail, use resolve.Endpoint.Priority
	// instead.
	Zone string

	// Peer is the place of this balancer among all that use the same endpoints, such as a
	// service's replicas. If it is known, the apertures are even: see [Peer].
	Peer Peer

	// OutlierDetection configures the ejection of endpoints that fail more often than others.
	OutlierDetection OutlierDetection
}

// Peer is the place of a balancer among Count balancers with the same endpoints. If Count is not 0,
// the zero [Picker]'s aperture holds at least n/Count of n endpoints: those from the place
// Index/Count on, in an order that all balancers share. Together the apertures then include all
// endpoints equally often, as Finagle's deterministic aperture does. A failing endpoint stays in it.
type Peer struct {
	Index, Count int // Index is from 0 to Count − 1
}

// Validate returns an error that names every field that is out of range, or nil.
func (p Policy) Validate() error {
	var errs []error
	// bad adds an error for a field.
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("balance: policy: %s is %v, want %s", field, value, want))
	}
	const short = "0 for the default, or at least 1ms"
	if p.Decay != 0 && p.Decay < time.Millisecond {
		bad("Decay", p.Decay, short)
	}
	if p.SlowStart < 0 || p.SlowStart > longestStart {
		bad("SlowStart", p.SlowStart, fmt.Sprintf("0 for none, or up to %v", longestStart))
	}
	if p.Peer.Index < 0 || p.Peer.Index >= max(p.Peer.Count, 1) {
		bad("Peer", p.Peer, "an Index from 0 to Count - 1")
	}
	if p.Cost > LeastRequest {
		bad("Cost", uint8(p.Cost), "EWMA or LeastRequest")
	}
	if p.Sample > SampleEnd {
		bad("Sample", uint8(p.Sample), "SampleFirstByte, SampleHeaders or SampleEnd")
	}
	if err := p.OutlierDetection.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// longestStart is the limit of Policy.SlowStart.
const longestStart = 24 * time.Hour

// orDefault returns p with the default value in each field that is 0. p must be valid.
func (p Policy) orDefault() Policy {
	if p.Decay == 0 {
		p.Decay = 10 * time.Second
	}
	p.OutlierDetection = p.OutlierDetection.orDefault()
	return p
}

// Sample is the point in time at which a response's latency is measured.
type Sample uint8

// The values of Sample. An error without a response is measured when Call returns.
const (
	SampleFirstByte Sample = iota // first byte of the body, or end of a response without one; headers of an upgraded connection
	SampleHeaders                 // return of Call: for connections and slowly read responses
	SampleEnd                     // end of the response, see WithCompletion
)

// SetPolicy replaces the balancer's policy. It keeps all endpoints, connections and statistics, and
// requests in flight continue. It returns the error of [Policy.Validate], and then changes nothing.
//
// A new [Picker] takes effect with the next pick. Running ejections keep their duration. A new Sample
// applies also to responses in progress.
func (b *Balancer[Req, Rsp]) SetPolicy(p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	p = p.orDefault()
	b.mu.Lock()
	defer b.mu.Unlock()
	// After the end there is nothing to configure.
	if b.ended.Load() != nil {
		return nil
	}
	old := b.policy.Swap(&p)
	for _, g := range b.groups {
		g.setParams(p)
		// Pickers with equal names are equal, and keep their state, such as the position of a round robin.
		if p.Picker.String() != old.Picker.String() {
			g.use(p.Picker)
		}
	}
	if p.OutlierDetection.Interval != old.OutlierDetection.Interval {
		b.startComparing()
	}
	// Each endpoint is near or far by the new zone.
	if p.Zone != old.Zone {
		for _, n := range b.nodes {
			b.update(n, n.info)
		}
	}
	b.divide()
	return nil
}
