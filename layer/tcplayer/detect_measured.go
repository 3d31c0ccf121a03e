package tcplayer

import (
	"context"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// DetectInstruments are where [Detect] writes. Their labels are bound before they
// are given, but for the one that is named. What is nil is not recorded.
type DetectInstruments struct {
	Latency metrics.Histogram // milliseconds until the protocol was known, or was not to be known
	Results metrics.Counter   // connections that were looked at; label "result": http/1, http/2, not_http, read_timeout, error
}

// WithDetectMetrics has [Detect] write to i. Nothing is written of a connection that
// is not looked at, see [WithSkipDetect], or whose context ended meanwhile. The
// label is bound here. [DetectTLS] and [ProxyProtocol] do not write.
func WithDetectMetrics(i DetectInstruments) DetectOption {
	if i.Latency == nil {
		i.Latency = discard.NewHistogram()
	}
	if i.Results == nil {
		i.Results = discard.NewCounter()
	}
	m := &detectMeters{
		latency: i.Latency,
		late:    i.Results.With("result", "read_timeout"), failed: i.Results.With("result", "error"),
	}
	m.spoken[Opaque] = i.Results.With("result", "not_http")
	m.spoken[HTTP1] = i.Results.With("result", "http/1")
	m.spoken[HTTP2] = i.Results.With("result", "http/2")
	return detectOption(func(o *detectOptions) { o.meters = m })
}

// detectMeters are DetectInstruments with all labels bound.
type detectMeters struct {
	latency      metrics.Histogram
	spoken       [HTTP2 + 1]metrics.Counter
	late, failed metrics.Counter
}

// record writes what looking at a connection since start came to: what it speaks,
// or the error that came instead. A nil m writes nothing.
func (m *detectMeters) record(ctx context.Context, start time.Time, spoken Protocol, err error) {
	switch {
	case m == nil, err != nil && ctx.Err() != nil:
		return
	case err == nil:
		m.spoken[spoken].Add(1)
	case lateness(err):
		m.late.Add(1)
	default:
		m.failed.Add(1)
	}
	m.latency.Observe(float64(time.Since(start)) / float64(time.Millisecond))
}
