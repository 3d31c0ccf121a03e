package linkerd

import (
	"fmt"
	"math"

	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/policyroute"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// filters has the effects of the filters of a route or backend. Only the effects are set in the
// embedded Route.
type filters struct {
	profiles.Route

	forbidden bool // whether the connection is rejected
}

func (c *policyConverter) httpFilters(all []*outbound.HttpRoute_Filter) (f filters) {
	for _, m := range all {
		if response := m.GetResponseHeaderModifier(); response != nil {
			policyroute.AddHeaders(&f.ResponseHeader, response)
		} else if err := policyroute.AddHTTPFilter(&f.Route, m); err != nil {
			c.problem(err)
		}
	}
	return f
}

func (c *policyConverter) grpcFilters(all []*outbound.GrpcRoute_Filter) (f filters) {
	for _, m := range all {
		if err := policyroute.AddGRPCFilter(&f.Route, m); err != nil {
			c.problem(err)
		}
	}
	return f
}

func (c *policyConverter) httpRetry(m *outbound.HttpRoute_Retry) *profiles.Retry {
	if m == nil {
		return nil
	}
	r := c.retry(m.GetMaxRetries(), m.GetMaxRequestBytes(), m)
	for _, s := range m.GetConditions().GetStatusRanges() {
		if status, err := convertRange(s); err != nil {
			c.problem(err)
		} else {
			r.Statuses = append(r.Statuses, status)
		}
	}
	return c.validRetry(r)
}

func convertRange(s *outbound.HttpRoute_Retry_Conditions_StatusRange) (profiles.Status, error) {
	if s.GetStart() == 0 || s.GetEnd() > 599 || s.GetStart() > s.GetEnd() {
		return profiles.Status{}, fmt.Errorf("retry: statuses %d to %d are not a range within 1 to 599", s.GetStart(), s.GetEnd())
	}
	return profiles.Status{Min: int(max(s.GetStart(), 100)), Max: int(max(s.GetEnd(), 100))}, nil
}

func (c *policyConverter) grpcRetry(m *outbound.GrpcRoute_Retry) *profiles.Retry {
	if m == nil {
		return nil
	}
	r := c.retry(m.GetMaxRetries(), m.GetMaxRequestBytes(), m)
	on := m.GetConditions()
	for _, code := range []struct {
		retried bool
		code    uint32
	}{
		{on.GetCancelled(), 1},
		{on.GetDeadineExceeded(), 4},
		{on.GetResourceExhausted(), 8},
		{on.GetInternal(), 13},
		{on.GetUnavailable(), 14},
	} {
		if code.retried {
			r.GRPC = append(r.GRPC, profiles.GRPCStatus{Min: code.code, Max: code.code})
		}
	}
	return c.validRetry(r)
}

// timed is a retry message of an HTTP route or of a gRPC route.
type timed interface {
	GetTimeout() *durationpb.Duration
	GetBackoff() *outbound.ExponentialBackoff
}

// maxRetries is the largest valid value of Max in a profiles.Retry.
const maxRetries = 99

func (c *policyConverter) retry(most, bytes uint32, m timed) profiles.Retry {
	return profiles.Retry{
		Max: int(min(most, maxRetries)), MaxBodyBytes: int64(bytes),
		AttemptTimeout: c.duration("retry timeout", m.GetTimeout()), Backoff: c.backoff(m.GetBackoff()),
	}
}

func (c *policyConverter) validRetry(r profiles.Retry) *profiles.Retry {
	if r.Max == 0 {
		return nil
	}
	return &r
}

// backoff converts a backoff. It returns the zero Backoff, which means the default, if m is
// missing or invalid.
func (c *policyConverter) backoff(m *outbound.ExponentialBackoff) layer.Backoff {
	if m == nil {
		return layer.Backoff{}
	}
	b := layer.Backoff{
		Min: c.duration("backoff", m.GetMinBackoff()), Max: c.duration("backoff", m.GetMaxBackoff()), Jitter: float64(m.GetJitterRatio()),
	}
	if err := b.Validate(); err != nil {
		c.problem(err)
		return layer.Backoff{}
	}
	return b
}

// withBreaker converts the failure accrual m to a circuit breaker, and stores it in c.balancing.
// The breaker then applies to each endpoint of all backends of the policy. If m is missing or
// invalid, withBreaker stores no breaker. It returns c.
func (c *policyConverter) withBreaker(m *outbound.FailureAccrual) *policyConverter {
	c.balancing, c.at = profiles.Balancing{}, "failure accrual"
	var p layer.BreakerPolicy
	var b *outbound.ExponentialBackoff
	switch kind := m.GetKind().(type) {
	case nil:
		return c
	case *outbound.FailureAccrual_ConsecutiveFailures_:
		p.ConsecutiveFailures = int(min(kind.ConsecutiveFailures.GetMaxFailures(), math.MaxInt32))
		b = kind.ConsecutiveFailures.GetBackoff()
	case *outbound.FailureAccrual_Unified_:
		p.MinSuccessRate = kind.Unified.GetSuccessRateThreshold()
		p.Window = c.duration("window", kind.Unified.GetDecay())
		p.MinRequests = int(min(kind.Unified.GetMinRequests(), math.MaxInt32))
		p.ConsecutiveFailures = int(min(kind.Unified.GetMaxConsecutiveFailures(), math.MaxInt32))
		b = kind.Unified.GetBackoff()
	}
	if p.ConsecutiveFailures == 0 {
		if p.ConsecutiveFailures = -1; p.MinSuccessRate == 0 {
			return c
		}
	}
	p.Backoff, p.RetryAfter = c.backoff(b), b.GetRespectRetryAfterHint()
	if err := p.Validate(); err != nil {
		c.problem(err)
		return c
	}
	if n := m.GetEjection().GetMinReadyEndpoints(); n > 1 {
		c.problemf("the number of endpoints that stay ready is %d, and 1 is used", n)
	}
	c.balancing.Breaker = p
	return c
}

// routeBackend is a backend of an HTTP, gRPC, TLS or opaque route. F is the type of its
// filters.
type routeBackend[F any] interface {
	GetBackend() *outbound.Backend
	GetFilters() []F
}

// weightedBackend is a backend with a weight, in a rule with a random distribution. B is the
// type of the backend.
type weightedBackend[B any] interface {
	GetBackend() B
	GetWeight() uint32
}

// backendsOf returns the backends of a rule, with their filters converted by the function convert.
// The rule uses the first available backend of the list first, or one of the list random, selected
// by weight. The argument given is false if the rule specifies neither. Without backends, the
// result is empty but not nil. If the result failover is true, a backend is used only while the
// previous ones are unavailable.
func backendsOf[F any, B routeBackend[F], W weightedBackend[B]](
	c *policyConverter, given bool, first []B, random []W, convert func([]F) filters,
) (backends []profiles.Backend, failover bool) {
	if !given {
		c.problemf("the rule has no backends")
	}
	backends = make([]profiles.Backend, 0, len(first)+len(random))
	add := func(b B, weight uint32) {
		to, f := c.backend(b.GetBackend()), convert(b.GetFilters())
		to.Weight = weight
		to.RequestHeader, to.ResponseHeader, to.Redirect, to.Faults = f.RequestHeader, f.ResponseHeader, f.Redirect, f.Faults
		if f.forbidden {
			to.Missing = "a filter of the policy forbids the connection"
		}
		backends = append(backends, to)
	}
	for _, b := range first {
		add(b, 1)
	}
	for _, w := range random {
		add(w.GetBackend(), w.GetWeight())
	}
	return backends, len(first) > 1
}

func (c *policyConverter) backend(m *outbound.Backend) profiles.Backend {
	b := profiles.Backend{Labels: metaLabels("backend", m.GetMetadata())}
	switch kind := m.GetKind().(type) {
	case *outbound.Backend_Forward:
		if b.Endpoint = convertEndpoint(kind.Forward, c.problem); b.Endpoint == nil {
			b.Missing = fmt.Sprintf("backend %s has an invalid address", metaName(m.GetMetadata()))
		}
	case *outbound.Backend_Balancer:
		b.Authority = kind.Balancer.GetDiscovery().GetDst().GetPath()
		b.Balancing = c.balancing
		b.Balancing.QueueCapacity = int(min(m.GetQueue().GetCapacity(), math.MaxInt32))
		b.Balancing.QueueTimeout = c.duration("fail-fast timeout", m.GetQueue().GetFailfastTimeout())
		b.Balancing.Decay = c.duration("decay", kind.Balancer.GetPeakEwma().GetDecay())
		if p := kind.Balancer.GetPenaltyPeakEwma(); p != nil {
			b.Balancing.Decay, b.Balancing.Penalty = c.duration("decay", p.GetDecay()), c.duration("penalty", p.GetPenalty())
		}
		if err := b.Target.Validate(); err != nil {
			c.problem(err)
			b.Missing = fmt.Sprintf("backend %s: %v", metaName(m.GetMetadata()), err)
		}
	default:
		b.Missing = fmt.Sprintf("backend %s has no dispatcher", metaName(m.GetMetadata()))
	}
	return b
}

// connectionFilter is a filter of a TLS or opaque route.
type connectionFilter interface {
	GetInvalid() *opaque_route.Invalid
}

// connectionRule converts a rule of a TLS or opaque route. If the rule has filters (the argument
// ofRule), all of its connections are rejected. If a backend has filters, only the connections to
// that backend are rejected. The other arguments are those of backendsOf.
func connectionRule[F connectionFilter, B routeBackend[F], W weightedBackend[B]](
	c *policyConverter, ofRule []F, given bool, first []B, random []W,
) rule {
	convert := func(all []F) filters {
		for _, f := range all {
			if m := f.GetInvalid(); m != nil {
				c.problemf("invalid: %s", m.GetMessage())
			}
		}
		return filters{forbidden: len(all) > 0}
	}
	to := rule{policy: profiles.RoutePolicy{Backends: []profiles.Backend{}}}
	if !convert(ofRule).forbidden {
		to.policy.Backends, to.policy.Failover = backendsOf(c, given, first, random, convert)
	}
	return to
}
