package balance

import (
	"errors"
	"fmt"
	"time"
)

// Policy configures how a [Balancer] picks. The zero value has all defaults. [New] panics
// if a value is out of range: see [Policy.Validate].
type Policy struct {
	// Picker is the rule: [PowerOfChoices], [FullScan], [ConsistentHash], [RoundRobin] or
	// [Random].
	Picker Picker

	// Cost compares endpoints: [PeakEWMA], [LeastRequest] or [CostOf].
	Cost Cost

	// Sample is when the latency of a response is taken. The default is
	// [SampleFirstByte]. [WithCompletion] sets when a response stops being in flight.
	Sample Sample

	// DefaultRTT is the expected latency of all endpoints before the first response, from
	// 1 ms to a day. 0 means 30 ms. An endpoint that joins others is expected to have
	// their median latency.
	DefaultRTT time.Duration

	// Decay is the time constant of the moving average, and of the time in which a
	// latency ages towards the median. At least 1 ms; 0 means 10 s.
	Decay time.Duration

	// Penalty is the latency that a failure counts as, see [WithClassifier]. 0 means
	// twenty times the median, from 20 ms to 5 s, which is what linkerd's load biaser
	// always takes. A negative value means none.
	//
	// An endpoint that failed gets a request again once its latency has aged to the cost
	// of the others. After one failure at latencies of a few ms that takes about half a
	// minute. A shorter Decay or a smaller Penalty reduces it. From the second failure in
	// a row to its next good response an endpoint also counts as having many requests in
	// flight, unless more than half of the endpoints fail.
	Penalty time.Duration

	// SlowStart is the time in which the weight of a new endpoint grows from a tenth to
	// all of it, for services with cold caches. 0 means none. Meanwhile its latency ages
	// ten times as fast. It begins when an endpoint is ready for the first time, or after
	// not being ready for at least as long. The end of an ejection does not begin it.
	SlowStart time.Duration

	// Zone is the zone of the balancer. Endpoints whose label "zone" differs or is
	// missing are in another zone. "" means no zones.
	Zone string

	// ZoneSpillover is the ratio of costs from which the cheapest endpoint of another
	// zone is picked instead of the cheapest of the same zone. At least 1; 0 means 4, so
	// that an endpoint has three requests in flight before others are picked.
	ZoneSpillover float64

	// OutlierDetection ejects endpoints that fail more than their peers. The zero value
	// ejects none.
	OutlierDetection OutlierDetection
}

// Validate returns an error that names every field that is out of range.
func (p Policy) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("balance: policy: %s is %v, want %s", field, value, want))
	}
	const short = "0 for the default, or at least 1ms"
	if p.DefaultRTT != 0 && p.DefaultRTT < time.Millisecond || p.DefaultRTT > longestSample {
		bad("DefaultRTT", p.DefaultRTT, fmt.Sprintf("%s and at most %v", short, longestSample))
	}
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
	if p.DefaultRTT == 0 {
		p.DefaultRTT = 30 * time.Millisecond
	}
	if p.Decay == 0 {
		p.Decay = 10 * time.Second
	}
	if p.ZoneSpillover == 0 {
		p.ZoneSpillover = 4
	}
	p.OutlierDetection = p.OutlierDetection.orDefault()
	return p
}

// Sample is the point of a response at which its latency is taken.
type Sample uint8

// The samples. An error without a response is taken when Call returns.
const (
	SampleFirstByte Sample = iota // first byte of the body, or its end if that comes first; headers of an upgraded connection
	SampleHeaders                 // when Call returns: for connections and slowly read responses
	SampleEnd                     // end of the response, see WithCompletion
)

// String returns "first byte", "headers" or "end".
func (s Sample) String() string {
	return [...]string{"first byte", "headers", "end"}[min(s, SampleEnd)]
}
