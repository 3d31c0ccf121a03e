package balance

import (
	"errors"
	"fmt"
	"time"
)

// Policy says how a [Balancer] chooses. The zero value is the default of
// everything. [New] panics if a value is out of range: see [Policy.Validate].
type Policy struct {
	// Pick is how many endpoints are looked at, or another rule: [PowerOfChoices],
	// [FullScan], [ConsistentHash], [RoundRobin], [Random].
	Picker Picker

	// Cost is what makes one endpoint better than another: [PeakEWMA],
	// [LeastRequest], or [CostOf].
	Cost Cost

	// Sample is when the latency of a response is taken. The default is
	// [SampleFirstByte]. When a response stops being in flight is said apart, by
	// [WithCompletion].
	Sample Sample

	// DefaultRTT is the latency that is expected of endpoints as long as
	// nothing is known of any: 30 ms if it is 0, at least 1 ms, at most a day. An endpoint
	// that joins others is expected to be like them.
	DefaultRTT time.Duration

	// Decay is the time constant of the moving average, and of the time in
	// which what is known of an endpoint fades until it is like its peers. 10 s
	// if it is 0, at least 1 ms.
	Decay time.Duration

	// Penalty is the latency that a failure counts as, see [WithClassifier]. 0 is
	// twenty times what is usual among the endpoints, from 20 ms to 5 s, which is
	// what linkerd's load biaser takes always; less than 0 is none. An endpoint that failed is tried again when what is known of it has
	// faded to what others cost. From the second failure in a row to its next
	// good response it costs as if many more requests waited there than at
	// others, so that it is not the cheapest because failures are quick; unless
	// more than half of the endpoints are failing. Until then it gets nothing
	// while others do: after one failure, at a few ms and with the defaults, for
	// about half a minute. A shorter Decay, or a smaller Penalty, makes that less.
	Penalty time.Duration

	// SlowStart is the time in which a new endpoint comes to its full share,
	// from a tenth of it: for services that are slow at first, with cold caches
	// or before their code is compiled. 0 is none. It is a part of the weight,
	// and what is known of the endpoint fades ten times as fast meanwhile, so
	// that it is not left cold because it was slow. It begins when the endpoint is
	// ready for the first time, and again when it was not ready for as long. The
	// time of an [OutlierDetection] does not count, as it does not in Envoy: whoever is back
	// from one is tried out, as is said there.
	SlowStart time.Duration

	// Zone is where this balancer is. Endpoints with another value of the label
	// "zone", or without it, are far. "" makes no difference between them.
	Zone string

	// Spill is how many times as dear the cheapest near endpoint must be as the
	// cheapest far one for a request to go there. 4 if it is 0, at least 1: a
	// near endpoint has three requests in flight before a far one is worth it.
	ZoneSpillover float64

	// Ejection takes endpoints out that fail more than their peers do. The zero
	// value does not.
	OutlierDetection OutlierDetection
}

// Validate returns an error that names every field that is out of range, with
// its value and the range.
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

// The points. An error in place of a response is taken when it comes.
const (
	SampleFirstByte Sample = iota // the first byte of the body, or its end if that comes first; of an upgraded connection, its head
	SampleHeaders                 // when Call returns: for connections, and for responses whose body the caller is slow to read
	SampleEnd                     // the end of the response, as WithCompletion has it
)

// String returns "first byte", "head" or "end".
func (s Sample) String() string {
	return [...]string{"first byte", "head", "end"}[min(s, SampleEnd)]
}
