package layer

import (
	"context"
	"time"
)

// Each of the following methods adds a layer of this package, with the options of the
// stack. RateLimitBy has an additional type parameter and must be added by With.

// Timeout adds the layer [Timeout].
func (s Stack[Req, Rsp]) Timeout(after time.Duration) Stack[Req, Rsp] {
	return s.With("timeout", Timeout[Req](after, s.opts...))
}

// ResponseHeaderTimeout adds the layer [ResponseHeaderTimeout].
func (s Stack[Req, Rsp]) ResponseHeaderTimeout(after time.Duration) Stack[Req, Rsp] {
	return s.With("response_header_timeout", ResponseHeaderTimeout[Req](after, s.opts...))
}

// IdleTimeout adds the layer [IdleTimeout].
func (s Stack[Req, Rsp]) IdleTimeout(after time.Duration) Stack[Req, Rsp] {
	return s.With("idle_timeout", IdleTimeout[Req](after, s.opts...))
}

// DeadlineFromRequest adds the layer [DeadlineFromRequest].
func (s Stack[Req, Rsp]) DeadlineFromRequest(read func(Req) (left time.Duration, ok bool)) Stack[Req, Rsp] {
	return s.With("deadline_in", DeadlineFromRequest(read, s.opts...))
}

// DeadlineToRequest adds the layer [DeadlineToRequest].
func (s Stack[Req, Rsp]) DeadlineToRequest(write func(Req, time.Duration) Req, margin time.Duration) Stack[Req, Rsp] {
	return s.With("deadline_out", DeadlineToRequest(write, margin, s.opts...))
}

// Limit adds the layer [Limit].
func (s Stack[Req, Rsp]) Limit(n int) Stack[Req, Rsp] {
	return s.With("limit", Limit[Req](n, s.opts...))
}

// AdaptiveLimit adds the layer [AdaptiveLimit].
func (s Stack[Req, Rsp]) AdaptiveLimit(p AdaptivePolicy) Stack[Req, Rsp] {
	return s.With("adaptive", AdaptiveLimit[Req](p, s.opts...))
}

// RateLimit adds the layer [RateLimit].
func (s Stack[Req, Rsp]) RateLimit(perSecond float64, burst int) Stack[Req, Rsp] {
	return s.With("rate", RateLimit[Req](perSecond, burst, s.opts...))
}

// Shed adds the layer [Shed].
func (s Stack[Req, Rsp]) Shed(p ShedPolicy) Stack[Req, Rsp] {
	return s.With("shed", Shed[Req](p, s.opts...))
}

// Queue adds the layer [Queue].
func (s Stack[Req, Rsp]) Queue(capacity int, maxWait time.Duration) Stack[Req, Rsp] {
	return s.With("queue", Queue[Req](capacity, maxWait, s.opts...))
}

// Breaker adds the layer [Breaker].
func (s Stack[Req, Rsp]) Breaker(p BreakerPolicy) Stack[Req, Rsp] {
	return s.With("breaker", Breaker[Req](p, s.opts...))
}

// Fallback adds the layer [Fallback].
func (s Stack[Req, Rsp]) Fallback(p FallbackPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("fallback", Fallback(p, s.opts...))
}

// Retry adds the layer [Retry].
func (s Stack[Req, Rsp]) Retry(p RetryPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("retry", Retry(p, s.opts...))
}

// Hedge adds the layer [Hedge].
func (s Stack[Req, Rsp]) Hedge(p HedgePolicy[Req]) Stack[Req, Rsp] {
	return s.With("hedge", Hedge(p, s.opts...))
}

// Metrics adds the layer [Metrics].
func (s Stack[Req, Rsp]) Metrics(i Instruments) Stack[Req, Rsp] {
	return s.With("metrics", Metrics[Req](i, s.opts...))
}

// Trace adds the layer [Trace].
func (s Stack[Req, Rsp]) Trace(start func(ctx context.Context, req Req) (context.Context, Span[Rsp])) Stack[Req, Rsp] {
	return s.With("trace", Trace(start, s.opts...))
}

// FaultInjection adds the layer [FaultInjection].
func (s Stack[Req, Rsp]) FaultInjection(p FaultPolicy[Req]) Stack[Req, Rsp] {
	return s.With("fault", FaultInjection(p, s.opts...))
}

// Mirror adds the layer [Mirror].
func (s Stack[Req, Rsp]) Mirror(
	ctx context.Context, to Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req],
) Stack[Req, Rsp] {
	return s.With("mirror", Mirror(ctx, to, edit, p, s.opts...))
}

// Drain adds the layer [Drain].
func (s Stack[Req, Rsp]) Drain(d *Drainer) Stack[Req, Rsp] {
	return s.With("drain", Drain[Req](d, s.opts...))
}

// Filter adds the layer [Filter].
func (s Stack[Req, Rsp]) Filter(f func(Req) error) Stack[Req, Rsp] {
	return s.With("filter", Filter(f, s.opts...))
}

// MapRequest adds the layer [MapRequest].
func (s Stack[Req, Rsp]) MapRequest(f func(Req) Req) Stack[Req, Rsp] {
	return s.With("map_request", MapRequest[Req, Rsp](f))
}

// MapResponse adds the layer [MapResponse].
func (s Stack[Req, Rsp]) MapResponse(f func(Rsp) Rsp) Stack[Req, Rsp] {
	return s.With("map_response", MapResponse[Req](f))
}
