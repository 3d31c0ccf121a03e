package linkerd

import (
	"cmp"
	"fmt"
	"math"

	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/policyroute"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// filters holds what a route's or a backend's filters do. Only that is set in the embedded Route.
type filters struct {
	profiles.Route

	forbidden bool // whether the connection is rejected
}

// httpFilters converts the filters of an HTTP route or backend. It leaves out invalid ones.
func (c *policyConverter) httpFilters(all []*outbound.HttpRoute_Filter) (f filters) {
	for _, m := range all {
		// Filters on the response are kept apart from those on the request.
		if response := m.GetResponseHeaderModifier(); response != nil {
			policyroute.AddHeaders(&f.ResponseHeader, response)
		} else if err := policyroute.AddHTTPFilter(&f.Route, m); err != nil {
			c.problem(err)
		}
	}
	return f
}

// grpcFilters converts the filters of a gRPC route or backend. It leaves out invalid ones.
func (c *policyConverter) grpcFilters(all []*outbound.GrpcRoute_Filter) (f filters) {
	for _, m := range all {
		if err := policyroute.AddGRPCFilter(&f.Route, m); err != nil {
			c.problem(err)
		}
	}
	return f
}

// addHTTPRetry sets the retries of an HTTP route to those of m, which may be nil.
func (c *policyConverter) addHTTPRetry(route *profiles.Route, m *outbound.HttpRoute_Retry) {
	if m.GetMaxRetries() == 0 {
		return
	}
	c.addRetry(route, m)
	ranges := m.GetConditions().GetStatusRanges()
	route.Retry.Statuses = make([]profiles.Status, 0, len(ranges))
	for _, s := range ranges {
		if status, err := convertRange(s); err != nil {
			c.problem(err)
		} else {
			route.Retry.Statuses = append(route.Retry.Statuses, status)
		}
	}
}

// convertRange converts a range of statuses to retry. The controller allows numbers below 100, which no response has.
func convertRange(s *outbound.HttpRoute_Retry_Conditions_StatusRange) (profiles.Status, error) {
	if s.GetStart() == 0 || s.GetEnd() > 599 || s.GetStart() > s.GetEnd() {
		return profiles.Status{}, fmt.Errorf("retry: statuses %d to %d are not a range within 1 to 599", s.GetStart(), s.GetEnd())
	}
	return profiles.Status{Min: int(max(s.GetStart(), 100)), Max: int(max(s.GetEnd(), 100))}, nil
}

// addGRPCRetry sets the retries of a gRPC route to those of m, which may be nil.
func (c *policyConverter) addGRPCRetry(route *profiles.Route, m *outbound.GrpcRoute_Retry) {
	if m.GetMaxRetries() == 0 {
		return
	}
	c.addRetry(route, m)
	conditions := m.GetConditions()
	route.Retry.GRPC = []profiles.GRPCStatus{}
	for _, code := range []struct {
		retried bool
		code    codes.Code
	}{
		{conditions.GetCancelled(), codes.Canceled},
		{conditions.GetDeadineExceeded(), codes.DeadlineExceeded},
		{conditions.GetResourceExhausted(), codes.ResourceExhausted},
		{conditions.GetInternal(), codes.Internal},
		{conditions.GetUnavailable(), codes.Unavailable},
	} {
		if code.retried {
			route.Retry.GRPC = append(route.Retry.GRPC, profiles.GRPCStatus{Min: uint32(code.code), Max: uint32(code.code)})
		}
	}
}

// retryMessage is a retry message in an HTTP or gRPC route.
type retryMessage interface {
	GetMaxRetries() uint32
	GetMaxRequestBytes() uint32
	GetTimeout() *durationpb.Duration
	GetBackoff() *outbound.ExponentialBackoff
}

// maxRetries is the largest valid value of Max in a profiles.Retry.
const maxRetries = 99

// addRetry sets what the retries of all kinds of routes have in common.
func (c *policyConverter) addRetry(route *profiles.Route, m retryMessage) {
	route.AttemptTimeout = c.duration("retry timeout", m.GetTimeout())
	route.Retry = &profiles.Retry{
		Max: int(min(m.GetMaxRetries(), maxRetries)), NonIdempotent: true, WithoutBudget: true, LastUnlimited: true,
		MaxBodyBytes: cmp.Or(int64(m.GetMaxRequestBytes()), -1), Backoff: c.backoff(m.GetBackoff()),
	}
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
	// An invalid backoff is dropped as a whole, so that the default applies.
	if err := b.Validate(); err != nil {
		c.problem(err)
		return layer.Backoff{}
	}
	return b
}

// withBreaker converts the failure accrual m to a circuit breaker, and stores it in c.balancing.
// The breaker then applies to each endpoint of all backends in the policy. If m is missing or
// invalid, withBreaker stores no breaker. It returns c.
func (c *policyConverter) withBreaker(m *outbound.FailureAccrual) *policyConverter {
	// c.at is the place for errors.
	c.balancing, c.at = profiles.Balancing{}, "failure accrual"
	var p layer.BreakerPolicy
	var b *outbound.ExponentialBackoff
	switch kind := m.GetKind().(type) {
	// Without an accrual, endpoints have no breaker.
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
	// 0 disables the condition in a message, but means the default in a BreakerPolicy, where −1 disables it.
	if p.ConsecutiveFailures == 0 {
		if p.ConsecutiveFailures = -1; p.MinSuccessRate == 0 {
			return c
		}
	}
	p.Backoff, p.RetryAfter = c.backoff(b), b.GetRespectRetryAfterHint()
	// An invalid accrual counts as none.
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

// routeBackend is a backend in an HTTP, gRPC, TLS or opaque route. F is the type of its filters.
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

// backendsOf returns a rule's backends, with their filters converted by convert. If the list first is
// not empty, the rule uses the first available backend in it. Otherwise it draws one from the list random
// by weight. isSet is false if the rule specifies neither. Without backends, the result is empty but not
// nil.
func backendsOf[F any, B routeBackend[F], W weightedBackend[B]](
	c *policyConverter, isSet bool, first []B, random []W, convert func([]F) filters,
) (backends []profiles.Backend, d profiles.Distribution) {
	// A rule that specifies no backends fails all its requests.
	if !isSet {
		c.problemf("the rule has no backends")
	}
	backends = make([]profiles.Backend, 0, len(first)+len(random))
	// add converts one backend and adds it with its weight.
	add := func(b B, weight uint32) {
		target, f := c.backend(b.GetBackend()), convert(b.GetFilters())
		target.Weight = weight
		target.RequestHeader = f.RequestHeader
		target.ResponseHeader = f.ResponseHeader
		target.Redirect = f.Redirect
		target.Faults = f.Faults
		if f.forbidden {
			target.Missing = "a filter of the policy forbids the connection"
		}
		backends = append(backends, target)
	}
	// Without a random choice, weights do not matter.
	for _, b := range first {
		add(b, 1)
	}
	for _, w := range random {
		add(w.GetBackend(), w.GetWeight())
	}
	if len(first) > 0 {
		return backends, profiles.FirstAvailable
	}
	return backends, profiles.RandomAvailable
}

// backend converts a backend. If it is invalid, Missing says why, and its share of the requests fails.
func (c *policyConverter) backend(m *outbound.Backend) profiles.Backend {
	b := profiles.Backend{Labels: metaLabels("backend", m.GetMetadata())}
	switch kind := m.GetKind().(type) {
	case *outbound.Backend_Forward:
		// An address without a balancer.
		if b.Endpoint = convertEndpoint(kind.Forward, c.problem); b.Endpoint == nil {
			b.Missing = fmt.Sprintf("backend %s has an invalid address", metaName(m.GetMetadata()))
		}
	case *outbound.Backend_Balancer:
		b.Authority = kind.Balancer.GetDiscovery().GetDst().GetPath()
		b.Balancing = c.balancing
		b.Balancing.QueueCapacity = int(min(m.GetQueue().GetCapacity(), math.MaxInt32))
		b.Balancing.QueueTimeout = c.duration("fail-fast timeout", m.GetQueue().GetFailfastTimeout())
		b.Balancing.Decay = c.duration("decay", kind.Balancer.GetPeakEwma().GetDecay())
		// The newer kind of balancer also has a penalty.
		if p := kind.Balancer.GetPenaltyPeakEwma(); p != nil {
			b.Balancing.Decay, b.Balancing.Penalty = c.duration("decay", p.GetDecay()), c.duration("penalty", p.GetPenalty())
		}
		// An invalid name fails its share of the requests, instead of leaving it to others.
		if err := authority.CheckTarget(b.Authority); err != nil {
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

// connectionRule converts a rule in a TLS or opaque route. If the rule contains filters (ofRule),
// all its connections are rejected; if a backend does, only those to that backend. The other
// arguments are as in backendsOf.
func connectionRule[F connectionFilter, B routeBackend[F], W weightedBackend[B]](
	c *policyConverter, ofRule []F, isSet bool, first []B, random []W,
) rule {
	// The only filters of connections reject them.
	convert := func(all []F) filters {
		for _, f := range all {
			if m := f.GetInvalid(); m != nil {
				c.problemf("invalid: %s", m.GetMessage())
			}
		}
		return filters{forbidden: len(all) > 0}
	}
	converted := rule{route: profiles.Route{Backends: []profiles.Backend{}}}
	if !convert(ofRule).forbidden {
		converted.route.Backends, converted.route.Distribution = backendsOf(c, isSet, first, random, convert)
	}
	return converted
}
