package balance

import (
	"errors"
	"fmt"
	"time"
)

// Policy configures how a [Balancer] picks endpoints. The zero value has all defaults.
// [New] panics if a value is out of range, see [Policy.Validate].
type Policy struct {
	// Picker is the rule: [PowerOfChoices], [ConsistentHash], [RoundRobin] or [Random].
	Picker Picker

	// Cost is the cost by which endpoints are compared: [EWMA], [LeastRequest] or [CostOf].
	Cost Cost

	// Sample determines when the latency of a response is measured. The default is
	// [SampleFirstByte].
	Sample Sample

	// Decay is the time constant of the moving average of latencies, and of their
	// ageing towards the median. It is at least 1 ms; 0 means 10 s.
	Decay time.Duration

	// Penalty is the latency that a failure counts as, see [WithClassifier]. 0 means
	// twenty times the median, limited to 20 ms to 5 s. A negative value means none.
	// linkerd's load biaser always uses 5 s.
	//
	// A failed endpoint gets a request again when its latency has aged to the cost of
	// the others. After one failure, with latencies of a few ms, that takes about half
	// a minute. A shorter Decay or a smaller Penalty reduces it. From the second
	// consecutive failure to the next success, an endpoint also counts as having many
	// requests in flight, unless more than half of the endpoints fail.
	Penalty time.Duration

	// SlowStart is the time in which the weight of a new endpoint grows from a tenth to its
	// full value, for services with cold caches. 0 means none. During it, the latency ages ten
	// times as fast. It starts when an endpoint becomes ready for the first time, or after it
	// was not ready for at least as long. It does not start after an ejection.
	SlowStart time.Duration

	// Zone is the zone of the balancer. An endpoint whose label "zone" is missing or
	// differs is in another zone. "" means that zones are ignored.
	Zone string

	// ZoneSpillover is the ratio of costs from which the cheapest endpoint of another zone is
	// picked instead of the cheapest of the same zone. It is at least 1. 0 means 4: an endpoint
	// then has three requests in flight before equal endpoints of other zones are picked.
	ZoneSpillover float64

	// OutlierDetection configures the ejection of endpoints that fail more often than others.
	OutlierDetection OutlierDetection
}

// Validate returns an error that names every field that is out of range.
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
	if p.Sample > SampleEnd {
		bad("Sample", uint8(p.Sample), "SampleFirstByte, SampleHeaders or SampleEnd")
	}
	if err := p.OutlierDetection.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

const longestStart = 24 * time.Hour

// orDefault sets the defaults of a valid policy.
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

// String returns "first byte", "headers" or "end".
func (s Sample) String() string {
	return [...]string{"first byte", "headers", "end"}[min(s, SampleEnd)]
}
