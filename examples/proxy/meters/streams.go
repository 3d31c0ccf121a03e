package meters

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// streamFamilies are what there is of requests by route, or by route and
// backend: their number by how they ended, and how long they took.
type streamFamilies struct {
	statuses  *family[prometheus.Counter]
	durations *family[prometheus.Histogram]
}

// streams is the series of one route, or of one backend of it. Those of ends are
// bound when the first of their kind comes.
type streams struct {
	families streamFamilies
	lease    *lease
	labels   Labels

	durations prometheus.Histogram
	last      atomic.Pointer[ended] // most end as the one before
	ends      sync.Map              // outcome's key → *ended
}

type ended struct {
	outcome
	prometheus.Counter
}

func newStreams(f streamFamilies, l *lease, labels Labels) *streams {
	return &streams{families: f, lease: l, labels: labels, durations: f.durations.bind(l, labels)}
}

func (s *streams) at(o outcome) *ended {
	if e := s.last.Load(); e != nil && e.outcome == o {
		return e
	}
	found, ok := s.ends.Load(o.key())
	if !ok {
		found, _ = s.ends.LoadOrStore(o.key(), &ended{o, s.families.statuses.bind(s.lease, s.labels.With(o.labels()))})
	}
	e := found.(*ended) //nolint:errcheck,forcetypeassert // stored above
	s.last.Store(e)
	return e
}

// shown are the streams of a route or backend. They are asked for when a request
// ends, which may have lasted longer than those of its beginning are shown.
type shown interface{ current() *streams }

// stream is one request, and the Observer of its response.
type stream struct {
	of    shown
	ctx   context.Context //nolint:containedctx // the request's: it tells a caller who left from a body that broke
	start time.Time
	rsp   *http.Response
	tries *tries // nil: it is sent once
}

// tries counts how often a request was sent, to tell those that a retry has
// helped.
type tries struct {
	n  atomic.Int32
	of *routed
}

type triesKey struct{}

// call sends a request through next, and records it. A refusal is an end like
// another, since nobody above sends it elsewhere.
func (s *stream) call(next httplayer.Service, req *http.Request) (*http.Response, error) {
	s.start = time.Now()
	rsp, err := next.Call(s.ctx, req)
	if err != nil {
		s.done(withoutResponse(req, err))
		return rsp, err
	}
	s.rsp = rsp
	return httplayer.Completion(s.ctx, rsp, s), nil
}

func (s *stream) Data(int) {}

func (s *stream) End(err error) {
	s.done(afterHead(s.rsp, err))
	if s.tries == nil || s.tries.n.Load() < 2 {
		return
	}
	class := layer.Classifier[*http.Response](httplayer.Classify).Judge(s.ctx, layer.Outcome[*http.Response]{
		Response: s.rsp, Err: err, Ended: err == nil,
	})
	if !class.Failed() {
		s.tries.of.now().retries().successes.Inc()
	}
}

func (s *stream) done(o outcome) {
	of := s.of.current()
	of.durations.Observe(time.Since(s.start).Seconds())
	of.at(o).Inc()
}
