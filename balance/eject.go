package balance

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// OutlierDetection takes endpoints out that fail more than their peers do, for a while.
// The zero value takes none out.
//
// Which responses are failures is for the classifier to say, see [WithClassifier]. A
// refusal is not a failure: an endpoint that refuses is not ready, and comes back
// when it is.
//
// A caller that cancels says nothing of the endpoint, unless the head of the
// response was a failure. A deadline that passes before the first byte is a failure
// if the classifier says so, if the wait was longer than the usual latency of the
// endpoints, and if it is at least the third in a row that the endpoint misses.
// So an endpoint that hangs is ejected, and callers that allow less time than the
// endpoints need eject none.
//
// Each balancer judges by its own traffic and shares nothing with others. Two
// clients of one target may disagree, and one with few requests knows little.
//
// There are two rules, on by Consecutive and by Interval. The first is for an
// endpoint that is broken: it acts within a few responses. The second is for
// one that is worse than the others; it needs traffic to compare. It compares
// as Envoy does, and gRPC by its proposal A50: an endpoint is an outlier if the
// share s of its responses that were good is below the mean m of these shares
// by more than each of
//
//	Deviations · σ, where σ is the standard deviation of the shares
//	Difference
//	5 · √((m(1−m)+1/N)/N), what chance makes of its N responses
//
// The first alone, which is all that Envoy and gRPC have, ejects for 99.9 % where
// the others have 100 % (envoyproxy/envoy#18752, #37723), and, where a tenth of
// all requests fails everywhere, whoever had no luck. Where all endpoints do
// equally badly, none is an outlier.
//
// Where the endpoint is chosen by its latency, the penalty of a failure alone
// keeps nearly all requests away from it, so that there is hardly anything left
// to eject for. An OutlierDetection is for the other picks and costs ([ConsistentHash],
// [RoundRobin], [Random], [LeastRequest]), and for those who want it to be seen and
// counted.
//
// An endpoint that is out gets no requests; those that it has go on. When its
// time is over its Ready is asked, and it gets one request, then two, four and
// eight at a time, until four were answered; or what it had before, where costs
// do not matter. For each Interval (10 s if that is 0) but the first that passes
// until it is ejected again, it counts as once less in a row. An endpoint that is
// removed and comes back starts anew.
type OutlierDetection struct {
	// Consecutive is after how many failures in a row an endpoint is taken out
	// at once. A [layer.Throttled] response neither counts nor ends the row. An
	// endpoint that hangs misses two deadlines before they count. 0 is never;
	// Envoy's default is 5.
	ConsecutiveFailures int

	// Interval is how often the endpoints are compared with each other, up to
	// an hour. 0 is never; 10 s is what Envoy and gRPC do.
	Interval time.Duration

	// Deviations is by how many standard deviations the share of an endpoint's
	// good responses must be below the mean of all. 1.9 if it is 0.
	StdevFactor float64

	// Difference is by how much that share must be below the mean, however
	// alike the endpoints are. From 0 to 1; 0.05 if it is 0: what costs fewer
	// requests than one in twenty is better left to retries than to the peers,
	// which would have to bear the load.
	MinDifference float64

	// Requests is how many responses an endpoint must have given in an interval
	// to be compared. 100 if it is 0. Of fewer than twenty, chance explains
	// nearly everything.
	RequestVolume int

	// Endpoints is how many such endpoints there must be. 5 if it is 0: of
	// fewer, no single one can be below by 1.9 deviations.
	MinEndpoints int

	// Time is for how long an endpoint is taken out the first time; the second
	// time in a row it is twice that, then three times, and so on. Up to a
	// tenth less, at random, so that the endpoints that went at once do not come
	// back at once. 30 s if it is 0.
	BaseEjectionTime time.Duration

	// MaxEjectionTime is the longest of these times. 5 minutes if it is 0, or Time if
	// that is more.
	MaxEjectionTime time.Duration

	// Floor is the share of all endpoints, whatever their state, below which
	// those that are ready never fall by ejection; nor below one endpoint. Where
	// more of them fail it is not for the endpoints to blame, and the few that
	// are left would not bear it: those that should go are spared. Where others
	// become unready, so that those that are ready fall below it, ejected ones
	// come back early, those that were out longest first. So there is always
	// an endpoint to try unless all refuse.
	//
	// It also holds for the breakers of endpoints, even where both rules are off. An
	// endpoint whose [layer.Breaker] rejects a request stays ready if fewer than the
	// floor would be left, and gets the request with [layer.PastBreakers]. Other
	// rejections take an endpoint out. An endpoint that is out already comes back
	// when its breaker admits a probe, and not before.
	//
	// From 0 to 1; ½ if it is 0. With 1 nothing is taken out, and what is
	// spared tells what would have been.
	MinReady float64
}

// Validate returns an error that names every field that is out of range.
func (e OutlierDetection) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("balance: ejection: %s is %v, want %s", field, value, want))
		}
	}
	const count, length = "0 or more", "0, or at least 1ms"
	check(e.ConsecutiveFailures >= 0 && e.ConsecutiveFailures <= math.MaxInt32, "ConsecutiveFailures", e.ConsecutiveFailures, count)
	check(e.Interval == 0 || e.Interval >= time.Millisecond && e.Interval <= maxInterval, "Interval", e.Interval, length+" and at most 1h")
	check(e.StdevFactor >= 0, "StdevFactor", e.StdevFactor, "0 for the default, or more")
	check(e.MinDifference >= 0 && e.MinDifference <= 1, "MinDifference", e.MinDifference, "from 0, for the default, to 1")
	check(e.RequestVolume >= 0, "RequestVolume", e.RequestVolume, count)
	check(e.MinEndpoints >= 0, "MinEndpoints", e.MinEndpoints, count)
	check(e.BaseEjectionTime == 0 || e.BaseEjectionTime >= time.Millisecond, "BaseEjectionTime", e.BaseEjectionTime, length)
	check(e.MaxEjectionTime == 0 || e.MaxEjectionTime >= cmp.Or(e.BaseEjectionTime, defaultTime),
		"MaxEjectionTime", e.MaxEjectionTime, "0, or at least BaseEjectionTime")
	check(e.MinReady >= 0 && e.MinReady <= 1, "MinReady", e.MinReady, "from 0, for the default, to 1")
	return errors.Join(errs...)
}

const (
	maxInterval = time.Hour // bounds what an interval can count: see conduct
	defaultTime = 30 * time.Second
)

// floor returns how many of n endpoints must be left.
func (e OutlierDetection) floor(n int) int {
	const rounding = 1e-9 // 0.07 · 100 is more than 7
	return max(1, int(math.Ceil(e.MinReady*float64(n)-rounding)))
}

// orDefault sets the defaults of a valid policy.
func (e OutlierDetection) orDefault() OutlierDetection {
	e.StdevFactor = cmp.Or(e.StdevFactor, 1.9)
	e.MinDifference = cmp.Or(e.MinDifference, 0.05)
	e.RequestVolume = cmp.Or(e.RequestVolume, 100)
	e.MinEndpoints = cmp.Or(e.MinEndpoints, 5)
	e.BaseEjectionTime = cmp.Or(e.BaseEjectionTime, defaultTime)
	e.MaxEjectionTime = cmp.Or(e.MaxEjectionTime, max(5*time.Minute, e.BaseEjectionTime))
	e.MinReady = cmp.Or(e.MinReady, 0.5)
	return e
}
