package layer

import (
	"context"
	"errors"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Metrics counts requests and what became of them, and times them.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request that its caller cancelled counts as [Ignorable]; one
// whose deadline ran out is for the [Classifier] to judge.
//
// Body: a request is over when its response ended, see [WithCompletion]. One whose body
// was closed early counts as what its head said.
//
// Errors: passed as they are. A refusal by inner is counted apart and has no
// class.
//
// Cost: the instruments, three clock readings and one allocation.
func Metrics[Req, Rsp any](i Instruments, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	o.to = i.orDiscard()
	ended := new([classes]metrics.Counter)
	for c := range ended {
		ended[c] = o.to.Responses.With("class", Class(c).String())
	}
	o.to.Requests.Add(0)
	o.to.Rejections.Add(0)
	o.to.InFlight.Add(0)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &measured[Req, Rsp]{Service: next, options: o, ended: ended}
	}
}

type measured[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	ended *[classes]metrics.Counter
}

func (m *measured[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	s := &sample[Req, Rsp]{measured: m, ctx: ctx, start: time.Now()}
	m.to.InFlight.Add(1)
	handed := false
	defer func() {
		if !handed { // a panic, or Goexit
			defer s.done(Failure)
			defer m.to.Requests.Add(1)
			m.drop(rsp, err)
		}
	}()
	rsp, err = m.Service.Call(ctx, req)
	switch {
	case err == nil:
		s.rsp = rsp
		m.to.TimeToHeaders.Observe(milliseconds(time.Since(s.start)))
		rsp = m.complete(ctx, rsp, s)
		handed = true
		m.to.Requests.Add(1)
	case errors.Is(err, ErrNotReady):
		handed = true
		m.to.Rejections.Add(1)
		m.to.InFlight.Add(-1)
	default:
		class := m.judge(ctx, Outcome[Rsp]{Err: err}) // which may panic, too
		handed = true
		m.to.Requests.Add(1)
		s.done(class)
	}
	return rsp, err
}

func (m *measured[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *measured[Req, Rsp]) Describe() Node { return Node{Name: "metrics"} }

// sample is the Observer of one response.
type sample[Req, Rsp any] struct {
	*measured[Req, Rsp]
	ctx   context.Context //nolint:containedctx // the request's: it tells a caller who left from inner that failed
	rsp   Rsp
	start time.Time
}

func (s *sample[Req, Rsp]) Data(int) {}

func (s *sample[Req, Rsp]) End(err error) {
	class := Failure
	// A classifier that panics must not leave the request in flight for ever.
	defer func() { s.done(class) }()
	class = s.judge(s.ctx, Outcome[Rsp]{Response: s.rsp, Err: err, Ended: err == nil})
}

func (s *sample[Req, Rsp]) done(c Class) {
	defer s.to.InFlight.Add(-1) // the last: there is nothing to count after it
	defer s.ended[c].Add(1)
	s.to.Latency.Observe(milliseconds(time.Since(s.start)))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
