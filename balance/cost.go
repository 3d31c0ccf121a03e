package balance

import "time"

// Cost says what one more request would cost at an endpoint; the cheapest gets
// it. The zero value is [PeakEWMA].
type Cost struct {
	name string
	of   func(Load) float64 // nil: peak EWMA
}

// Load is what is known of an endpoint when it is looked at.
type Load struct {
	InFlight  int           // requests that it has now
	Streaming int           // of these, the ones whose response goes on: their latency was taken
	Latency   time.Duration // what is expected of it, by the peak EWMA
}

// PeakEWMA is the latency that is expected, by a moving average that jumps to
// its peaks, times the requests that would then wait for their response; each
// response that goes on counts as what is usual. It is the default: it knows a
// slow endpoint without waiting for requests to pile up there, and one that has
// many. Latencies below 1 ms cost 1 ms, because their differences are noise.
func PeakEWMA() Cost { return Cost{} }

// LeastRequest is the requests that would then be in flight, whatever they take: the
// least-request rule. It suits requests of which some take far longer than
// others through no fault of the endpoint.
func LeastRequest() Cost {
	return CostOf("pending", func(l Load) float64 { return float64(l.InFlight + 1) })
}

// CostOf is a cost of one's own. The function is called for every endpoint that
// is looked at, by many goroutines; it returns a number above 0, and should
// allocate nothing. The name is for [Balancer.Describe]. A nil function panics.
func CostOf(name string, of func(Load) float64) Cost {
	if of == nil {
		panic("balance: nil cost function")
	}
	return Cost{name: name, of: of}
}

// String returns the name.
func (c Cost) String() string {
	if c.of == nil {
		return "peak ewma"
	}
	return c.name
}
