package layer

import (
	"context"
	"errors"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments are where [Metrics] writes. Their labels are bound before they
// are given (With of go-kit's metrics), once for each endpoint or route and
// never for each request. What is nil is not recorded.
type Instruments struct {
	Requests  metrics.Counter   // admitted requests
	Refusals  metrics.Counter   // refused by inner, untouched
	Successes metrics.Counter   // responses that ended well
	Failures  metrics.Counter   // errors, broken bodies, and responses that FailedIf says so of
	InFlight  metrics.Gauge     // admitted and not ended
	Latency   metrics.Histogram // milliseconds from Call to the end of the response
}

// FailedIf says which responses count as failures for [Metrics]. It is asked
// when the response ended, so trailers can be read. The default is none.
func FailedIf[Rsp any](failed func(Rsp) bool) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failed = failed })
}

// Metrics counts requests and their outcome, and times them.
//
// Admission: none of its own; Ready is forwarded.
//
// Body: a request is over when its response ended, see [Until].
//
// Errors: passed as they are. A request that its caller cancelled, or whose
// body the caller closed early, counts as a success: it tells nothing bad of
// inner. One whose deadline ran out is a failure.
//
// Cost: the instruments, two clock readings and one allocation.
func Metrics[Req, Rsp any](i Instruments, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	i = i.orDiscard()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &measured[Req, Rsp]{Service: next, options: o, to: i}
	}
}

func (i Instruments) orDiscard() Instruments {
	for _, c := range []*metrics.Counter{&i.Requests, &i.Refusals, &i.Successes, &i.Failures} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	if i.InFlight == nil {
		i.InFlight = discard.NewGauge()
	}
	if i.Latency == nil {
		i.Latency = discard.NewHistogram()
	}
	return i
}

type measured[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	to Instruments
}

func (m *measured[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	s := &sample[Rsp]{ctx: ctx, to: &m.to, failed: m.failed, start: time.Now()}
	m.to.InFlight.Add(1)
	handed := false
	defer func() {
		if !handed { // a panic, or Goexit
			m.to.Requests.Add(1)
			s.done(true)
		}
	}()
	rsp, err := m.Service.Call(ctx, req)
	handed = true
	switch {
	case err == nil:
		s.rsp = rsp
		m.to.Requests.Add(1)
		return m.complete(ctx, rsp, s), nil
	case errors.Is(err, ErrNotReady):
		m.to.Refusals.Add(1)
		m.to.InFlight.Add(-1)
	default:
		m.to.Requests.Add(1)
		s.done(!s.cancelled())
	}
	return rsp, err
}

func (m *measured[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *measured[Req, Rsp]) Describe() Node { return Node{Name: "metrics"} }

// sample is the Observer of one response.
type sample[Rsp any] struct {
	ctx    context.Context //nolint:containedctx // the request's: it tells a caller who left from inner that failed
	to     *Instruments
	failed func(Rsp) bool
	rsp    Rsp
	start  time.Time
}

func (s *sample[Rsp]) Data(int) {}

func (s *sample[Rsp]) End(err error) {
	if err == nil {
		s.done(s.failed != nil && s.failed(s.rsp))
	} else {
		s.done(!errors.Is(err, ErrUnread) && !s.cancelled())
	}
}

func (s *sample[Rsp]) cancelled() bool { return errors.Is(s.ctx.Err(), context.Canceled) }

func (s *sample[Rsp]) done(failed bool) {
	s.to.InFlight.Add(-1)
	s.to.Latency.Observe(float64(time.Since(s.start)) / float64(time.Millisecond))
	if failed {
		s.to.Failures.Add(1)
	} else {
		s.to.Successes.Add(1)
	}
}
