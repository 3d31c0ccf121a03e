package balance

import (
	"errors"
	"fmt"
	"time"
)

// Policy configures how a [Balancer] picks endpoints. The zero value has all defaults.
// [New] panics if a value is out of range, see [Policy.Validate].
type Policy struct {
	// Picker is the rule that chooses an endpoint: the zero [Picker], [ConsistentHash],
	// [RoundRobin] or [Random].
	Picker Picker

	// Cost is the rule for the cost of an endpoint: [EWMA] or [LeastRequest].
	Cost Cost

	// Sample determines when the latency of a response is measured. The default is
	// [SampleFirstByte].
	Sample Sample

	// Decay is the time constant of the moving average of latencies. Old latencies age towards the
	// median with the same time constant. 0 means 10 s. Another value is at least 1 ms.
	Decay time.Duration

	// Penalty is the latency that is recorded for a failure: see [WithClassifier]. 0 means
	// twenty times the median latency, but at least 20 ms and at most 5 s. A negative value
	// means no penalty. linkerd's load biaser always uses 5 s.
	//
	// A failed endpoint gets a request again when its latency has aged to the cost of the
	// others. After one failure, with latencies of a few ms, that takes about half a
	// minute. A shorter Decay or a smaller Penalty reduces this time. From the second
	// consecutive failure to the next success, an endpoint also counts as busy. This does
	// not apply while more than half of the endpoints fail.
	Penalty time.Duration

	// SlowStart is the time in which the weight of a new endpoint grows from a tenth to its
	// full value, for services with cold caches. 0 means no slow start. During a slow
	// start, latencies age ten times as fast. A slow start begins when an endpoint becomes
	// ready for the first time, or again after it was not ready for at least SlowStart. An
	// ejection does not cause a slow start.
	SlowStart time.Duration

	// Zone is the zone of the balancer. An endpoint is in another zone if its label "zone"
	// is missing or differs. "" means that zones are ignored.
	Zone string

	// ZoneSpillover determines when requests leave the zone. The cheapest endpoint of another zone
	// is picked if it would be the cheapest of all with ZoneSpillover − 1 more requests in flight.
	// 0 means 4, and another value is at least 1. With 4, equal endpoints of other zones are picked
	// if they have at least three requests in flight less.
	ZoneSpillover float64

	// OutlierDetection configures the ejection of endpoints that fail more often than others.
	OutlierDetection OutlierDetection
}

// Validate returns an error that names every field that is out of range, or nil.
func (p Policy) Validate() error {
	var errs []error
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
	if p.ZoneSpillover != 0 && !(p.ZoneSpillover >= 1) {
		bad("ZoneSpillover", p.ZoneSpillover, "0 for the default, or at least 1")
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

const longestStart = 24 * time.Hour

// orDefault returns p with the default value in each field that is 0. p must be valid.
func (p Policy) orDefault() Policy {
	if p.Decay == 0 {
		p.Decay = 10 * time.Second
	}
	if p.ZoneSpillover == 0 {
		p.ZoneSpillover = 4
	}
	p.OutlierDetection = p.OutlierDetection.orDefault()
	return p
}

// Sample is the point in time at which the latency of a response is measured.
type Sample uint8

// The values of Sample. An error without a response is measured when Call returns.
const (
	SampleFirstByte Sample = iota // first byte of the body, or end of a response without one; headers of an upgraded connection
	SampleHeaders                 // return of Call: for connections and slowly read responses
	SampleEnd                     // end of the response, see WithCompletion
)
