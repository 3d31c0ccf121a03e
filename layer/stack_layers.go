package layer

import (
	"context"
	"time"
)

// Each of the following methods adds a layer of this package below the other layers, with the
// stack's options. RateLimitBy takes another type parameter and must be added by With.

// Timeout adds a [Timeout] layer, which limits the time until the end of the response.
func (s Stack[Req, Rsp]) Timeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("timeout", Timeout[Req](limit, s.opts...))
}

// ResponseHeaderTimeout adds a [ResponseHeaderTimeout] layer, which limits the time until the
// response headers arrive.
func (s Stack[Req, Rsp]) ResponseHeaderTimeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("response_header_timeout", ResponseHeaderTimeout[Req](limit, s.opts...))
}

// IdleTimeout adds an [IdleTimeout] layer, which limits how long a single Read of a response body
// may wait.
func (s Stack[Req, Rsp]) IdleTimeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("idle_timeout", IdleTimeout[Req](limit, s.opts...))
}

// DeadlineFromRequest adds a [DeadlineFromRequest] layer, which limits each request to the time
// that read returns for it.
func (s Stack[Req, Rsp]) DeadlineFromRequest(read func(Req) (remaining time.Duration, ok bool)) Stack[Req, Rsp] {
	return s.With("deadline_in", DeadlineFromRequest(read, s.opts...))
}

// DeadlineToRequest adds a [DeadlineToRequest] layer. It passes the remaining time minus margin to
// write, which returns a copy of the request with this time.
func (s Stack[Req, Rsp]) DeadlineToRequest(write func(Req, time.Duration) Req, margin time.Duration) Stack[Req, Rsp] {
	return s.With("deadline_out", DeadlineToRequest(write, margin, s.opts...))
}

// Limit adds a [Limit] layer, which admits at most n requests at a time.
func (s Stack[Req, Rsp]) Limit(n int) Stack[Req, Rsp] {
	return s.With("limit", Limit[Req](n, s.opts...))
}

// AdaptiveLimit adds an [AdaptiveLimit] layer, which limits the requests in flight depending on the
// latency.
func (s Stack[Req, Rsp]) AdaptiveLimit(p AdaptivePolicy) Stack[Req, Rsp] {
	return s.With("adaptive", AdaptiveLimit[Req](p, s.opts...))
}

// RateLimit adds a [RateLimit] layer, which admits perSecond requests per second and bursts of up
// to burst requests.
func (s Stack[Req, Rsp]) RateLimit(perSecond float64, burst int) Stack[Req, Rsp] {
	return s.With("rate", RateLimit[Req](perSecond, burst, s.opts...))
}

// Shed adds a [Shed] layer, which rejects requests of low priority before the capacity is used up.
func (s Stack[Req, Rsp]) Shed(p ShedPolicy) Stack[Req, Rsp] {
	return s.With("shed", Shed[Req](p, s.opts...))
}

// Queue adds a [Queue] layer, in which up to capacity rejected requests wait, each for up to
// maxWait.
func (s Stack[Req, Rsp]) Queue(capacity int, maxWait time.Duration) Stack[Req, Rsp] {
	return s.With("queue", Queue[Req](capacity, maxWait, s.opts...))
}

// Breaker adds a [Breaker] layer, which stops sending requests to a failing service.
func (s Stack[Req, Rsp]) Breaker(p BreakerPolicy) Stack[Req, Rsp] {
	return s.With("breaker", Breaker[Req](p, s.opts...))
}

// Fallback adds a [Fallback] layer, which returns a substitute for a failure or a rejection.
func (s Stack[Req, Rsp]) Fallback(p FallbackPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("fallback", Fallback(p, s.opts...))
}

// Retry adds a [Retry] layer, which sends a failed request again if another attempt may succeed.
func (s Stack[Req, Rsp]) Retry(p RetryPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("retry", Retry(p, s.opts...))
}

// Hedge adds a [Hedge] layer, which sends a copy of a request that takes longer than most others.
func (s Stack[Req, Rsp]) Hedge(p HedgePolicy[Req]) Stack[Req, Rsp] {
	return s.With("hedge", Hedge(p, s.opts...))
}

// Metrics adds a [Metrics] layer, which counts requests and measures their duration.
func (s Stack[Req, Rsp]) Metrics(i Instruments) Stack[Req, Rsp] {
	return s.With("metrics", Metrics[Req](i, s.opts...))
}

// Trace adds a [Trace] layer, which reports each request to the [Span] that start returns.
func (s Stack[Req, Rsp]) Trace(start func(ctx context.Context, req Req) (context.Context, Span[Rsp])) Stack[Req, Rsp] {
	return s.With("trace", Trace(start, s.opts...))
}

// FaultInjection adds a [FaultInjection] layer, which injects delays or errors into a share of the
// requests.
func (s Stack[Req, Rsp]) FaultInjection(p FaultPolicy[Req]) Stack[Req, Rsp] {
	return s.With("fault", FaultInjection(p, s.opts...))
}

// Mirror adds a [Mirror] layer, which sends copies of requests to another service.
func (s Stack[Req, Rsp]) Mirror(
	ctx context.Context, shadow Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req],
) Stack[Req, Rsp] {
	return s.With("mirror", Mirror(ctx, shadow, edit, p, s.opts...))
}

// Drain adds a [Drain] layer, which counts the open requests in d and rejects new requests while d
// drains.
func (s Stack[Req, Rsp]) Drain(d *Drainer) Stack[Req, Rsp] {
	return s.With("drain", Drain[Req](d, s.opts...))
}

// Filter adds a [Filter] layer, which rejects the requests for which f returns an error.
func (s Stack[Req, Rsp]) Filter(f func(Req) error) Stack[Req, Rsp] {
	return s.With("filter", Filter(f, s.opts...))
}

// MapRequest adds a [MapRequest] layer, which replaces each request by the result of f.
func (s Stack[Req, Rsp]) MapRequest(f func(Req) Req) Stack[Req, Rsp] {
	return s.With("map_request", MapRequest[Req, Rsp](f))
}

// MapResponse adds a [MapResponse] layer, which replaces each response by the result of f.
func (s Stack[Req, Rsp]) MapResponse(f func(Rsp) Rsp) Stack[Req, Rsp] {
	return s.With("map_response", MapResponse[Req](f))
}
