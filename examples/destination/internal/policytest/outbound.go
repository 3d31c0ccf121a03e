// Package policytest stands in for linkerd2-proxy in tests. It accepts or rejects policy messages
// by the same rules as the conversions in linkerd2-proxy's linkerd/proxy/client-policy,
// linkerd/proxy/server-policy, linkerd/http/route and linkerd/distribute, and errors use the text
// that linkerd2-proxy logs. A controller should never send a message that fails here, because
// linkerd2-proxy would then answer every request to the destination or port with an internal
// error.
package policytest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Outbound returns an error if linkerd2-proxy would reject p, a destination's policy.
func Outbound(p *outbound.OutboundPolicy) error {
	if p.GetMetadata() == nil {
		return errors.New("missing metadata")
	}
	if err := checkResource(p.GetMetadata()); err != nil {
		return err
	}
	switch kind := p.GetProtocol().GetKind().(type) {
	case nil:
		return errors.New("invalid ProxyProtocol: missing kind")
	case *outbound.ProxyProtocol_Detect_:
		return checkDetect(kind.Detect)
	case *outbound.ProxyProtocol_Http1_:
		return checkHTTP(kind.Http1)
	case *outbound.ProxyProtocol_Http2_:
		return checkHTTP(kind.Http2)
	case *outbound.ProxyProtocol_Grpc_:
		return checkGRPC(kind.Grpc)
	case *outbound.ProxyProtocol_Tls_:
		return checkTLS(kind.Tls)
	case *outbound.ProxyProtocol_Opaque_:
		return checkOpaque(kind.Opaque)
	default:
		return fmt.Errorf("unknown protocol %T", kind)
	}
}

// checkDetect checks the policy for a destination whose protocol is detected. It must contain a policy for each
// protocol that may be found.
func checkDetect(d *outbound.ProxyProtocol_Detect) error {
	switch {
	case d.GetTimeout() == nil:
		return errors.New("invalid ProxyProtocol: Detect missing protocol detection timeout")
	case d.GetHttp1() == nil:
		return errors.New("invalid ProxyProtocol: Detect missing HTTP/1 configuration")
	case d.GetHttp2() == nil:
		return errors.New("invalid ProxyProtocol: Detect missing HTTP/2 configuration")
	case d.GetOpaque() == nil:
		return errors.New("invalid ProxyProtocol: Detect missing opaque configuration")
	}
	// Only the first error is returned.
	return first(
		within("invalid protocol detection timeout", checkDuration(d.GetTimeout())),
		checkHTTP(d.GetHttp1()), checkHTTP(d.GetHttp2()), checkOpaque(d.GetOpaque()),
	)
}

// checkHTTP checks the routes and the circuit breaker for HTTP/1 or HTTP/2.
func checkHTTP(p interface {
	GetRoutes() []*outbound.HttpRoute
	GetFailureAccrual() *outbound.FailureAccrual
},
) error {
	for _, route := range p.GetRoutes() {
		if err := checkRoute(route.GetMetadata(), route.GetHosts()); err != nil {
			return within("invalid HTTP route", err)
		}
		for _, rule := range route.GetRules() {
			if err := checkHTTPRule(rule); err != nil {
				return within("invalid HTTP route", err)
			}
		}
	}
	return within("invalid HTTP route: invalid failure accrual policy", checkAccrual(p.GetFailureAccrual()))
}

// checkHTTPRule checks a rule of an outbound HTTP route.
func checkHTTPRule(rule *outbound.HttpRoute_Rule) error {
	for _, m := range rule.GetMatches() {
		if err := checkHTTPMatch(m); err != nil {
			return within("invalid route match", err)
		}
	}
	for _, f := range rule.GetFilters() {
		if err := checkHTTPFilter(f); err != nil {
			return within("invalid filter", err)
		}
	}
	// The distribution's type depends on the kind of route, so its parts are passed one by one.
	backends, err := distribution(rule.GetBackends().GetKind() != nil, rule.GetBackends().GetEmpty() != nil,
		rule.GetBackends().GetFirstAvailable(), rule.GetBackends().GetRandomAvailable())
	for _, b := range backends {
		err = first(err, checkBackend(b.GetBackend()))
		for _, f := range b.GetFilters() {
			err = first(err, within("invalid backend filter", checkHTTPFilter(f)))
		}
	}
	retry := rule.GetRetry()
	if retry != nil {
		err = first(err, checkStatusRetry(retry), checkRetry(retry))
	}
	return first(err, checkTimeouts(rule.GetTimeouts()))
}

// checkStatusRetry checks the retries of an HTTP rule, which depend on the response's status.
func checkStatusRetry(r *outbound.HttpRoute_Retry) error {
	if r.GetConditions() == nil {
		return errors.New("invalid condition")
	}
	for _, s := range r.GetConditions().GetStatusRanges() {
		// The end is included in the range.
		if s.GetStart() == 0 || s.GetEnd() > 599 || s.GetStart() > s.GetEnd() {
			return fmt.Errorf("invalid condition: %v", s)
		}
	}
	if r.GetMaxRetries() > math.MaxUint16 {
		return fmt.Errorf("invalid max-retries: %d", r.GetMaxRetries())
	}
	return nil
}

// checkGRPC checks the routes and the circuit breaker for gRPC.
func checkGRPC(p *outbound.ProxyProtocol_Grpc) error {
	for _, route := range p.GetRoutes() {
		if err := checkRoute(route.GetMetadata(), route.GetHosts()); err != nil {
			return within("invalid gRPC route", err)
		}
		for _, rule := range route.GetRules() {
			if err := checkGRPCRule(rule); err != nil {
				return within("invalid gRPC route", err)
			}
		}
	}
	return within("invalid gRPC route: invalid failure accrual policy", checkAccrual(p.GetFailureAccrual()))
}

// checkGRPCRule checks a rule of an outbound gRPC route.
func checkGRPCRule(rule *outbound.GrpcRoute_Rule) error {
	for _, m := range rule.GetMatches() {
		if err := checkGRPCMatch(m); err != nil {
			return within("invalid route match", err)
		}
	}
	for _, f := range rule.GetFilters() {
		if err := checkGRPCFilter(f); err != nil {
			return within("invalid filter", err)
		}
	}
	// The distribution's type depends on the kind of route, so its parts are passed one by one.
	backends, err := distribution(rule.GetBackends().GetKind() != nil, rule.GetBackends().GetEmpty() != nil,
		rule.GetBackends().GetFirstAvailable(), rule.GetBackends().GetRandomAvailable())
	for _, b := range backends {
		err = first(err, checkBackend(b.GetBackend()))
		for _, f := range b.GetFilters() {
			err = first(err, within("invalid backend filter", checkGRPCFilter(f)))
		}
	}
	if retry := rule.GetRetry(); retry != nil {
		if retry.GetConditions() == nil {
			err = first(err, errors.New("invalid condition"))
		}
		err = first(err, checkRetry(retry))
	}
	return first(err, checkTimeouts(rule.GetTimeouts()))
}

// checkTLS checks the routes of TLS connections by server name.
func checkTLS(p *outbound.ProxyProtocol_Tls) error {
	for _, route := range p.GetRoutes() {
		err := checkRoute(route.GetMetadata(), nil)
		for _, sni := range route.GetSnis() {
			if sni.GetMatch() == nil {
				err = first(err, errors.New("invalid sni match: sni match must contain a match"))
			}
		}
		if n := len(route.GetRules()); n != 1 {
			err = first(err, fmt.Errorf("a TLS route must have exactly one rule, but %d were provided", n))
		}
		// The backends are distributed like those of an HTTP route.
		for _, rule := range route.GetRules() {
			backends, invalid := distribution(rule.GetBackends().GetKind() != nil, rule.GetBackends().GetEmpty() != nil,
				rule.GetBackends().GetFirstAvailable(), rule.GetBackends().GetRandomAvailable())
			err = first(err, invalid, checkFilterKinds(rule.GetFilters()))
			for _, b := range backends {
				err = first(err, checkBackend(b.GetBackend()), checkFilterKinds(b.GetFilters()))
			}
		}
		if err != nil {
			return within("invalid TLS route", err)
		}
	}
	return nil
}

// checkOpaque checks the route of connections that are forwarded as bytes.
func checkOpaque(p *outbound.ProxyProtocol_Opaque) error {
	if n := len(p.GetRoutes()); n > 1 {
		return fmt.Errorf("invalid opaque route: a `ProxyProtocol::Opaque` must have exactly one route, but %d were provided", n)
	}
	// There is no condition that could choose among several routes or rules.
	for _, route := range p.GetRoutes() {
		err := checkRoute(route.GetMetadata(), nil)
		if n := len(route.GetRules()); n != 1 {
			err = first(err, fmt.Errorf("an opaque route must have exactly one rule, but %d were provided", n))
		}
		for _, rule := range route.GetRules() {
			backends, invalid := distribution(rule.GetBackends().GetKind() != nil, rule.GetBackends().GetEmpty() != nil,
				rule.GetBackends().GetFirstAvailable(), rule.GetBackends().GetRandomAvailable())
			err = first(err, invalid, checkFilterKinds(rule.GetFilters()))
			for _, b := range backends {
				err = first(err, checkBackend(b.GetBackend()), checkFilterKinds(b.GetFilters()))
			}
		}
		if err != nil {
			return within("invalid opaque route", err)
		}
	}
	return nil
}

// distribution returns the backends that a rule distributes traffic over. Each kind of route uses
// its own message types, hence the type parameters. It is an error if all weights are 0, because
// linkerd2-proxy panics then.
func distribution[B any, W interface {
	GetBackend() B
	GetWeight() uint32
}, F interface{ GetBackends() []B }, R interface{ GetBackends() []W }](hasKind, isEmpty bool, ordered F, random R) ([]B, error) {
	backends := ordered.GetBackends()
	weight := uint64(0)
	for _, w := range random.GetBackends() {
		backends = append(backends, w.GetBackend())
		weight += uint64(w.GetWeight())
	}
	// The order is that of linkerd2-proxy, so that the same error comes first.
	switch {
	case !hasKind:
		return nil, errors.New("invalid distribution: missing distribution kind")
	case isEmpty:
		return nil, nil
	case len(backends) == 0:
		return nil, errors.New("invalid distribution: a distribution may not be empty")
	// With a single backend, its weight does not matter.
	case len(random.GetBackends()) > 1 && (weight == 0 || weight > math.MaxUint32):
		return nil, fmt.Errorf("distribution must be valid: the sum of the weights is %d", weight)
	}
	return backends, nil
}

// checkBackend checks a backend: what it is, its queue, and how it finds its endpoints.
func checkBackend(b *outbound.Backend) error {
	if b == nil || b.GetMetadata() == nil {
		return errors.New("invalid backend: missing backend metadata")
	}
	if err := checkResource(b.GetMetadata()); err != nil {
		return within("invalid backend", err)
	}
	err := within("invalid backend", first(
		required("queue", b.GetQueue() != nil),
		requiredDuration("queue failfast timeout", b.GetQueue().GetFailfastTimeout()),
	))
	// A balancer finds endpoints by a name, and a forward has one fixed endpoint.
	switch kind := b.GetKind().(type) {
	case *outbound.Backend_Balancer:
		err = first(err, within("invalid backend", checkBalancer(kind.Balancer)))
	case *outbound.Backend_Forward:
		if kind.Forward.GetAddr().GetIp().GetIp() == nil {
			err = first(err, errors.New("invalid backend: invalid forward endpoint"))
		}
	}
	return err
}

// checkBalancer checks how a balancer finds its endpoints and measures their load.
func checkBalancer(b *outbound.Backend_BalanceP2C) error {
	if b.GetDiscovery().GetKind() == nil {
		return errors.New("missing balancer discovery")
	}
	// The two kinds of load differ in which durations are required.
	switch load := b.GetLoad().(type) {
	case nil:
		return errors.New("missing balancer load")
	case *outbound.Backend_BalanceP2C_PeakEwma_:
		return first(
			requiredDuration("peak EWMA default RTT", load.PeakEwma.GetDefaultRtt()),
			requiredDuration("peak EWMA decay", load.PeakEwma.GetDecay()),
		)
	case *outbound.Backend_BalanceP2C_PenaltyPeakEwma_:
		p := load.PenaltyPeakEwma
		return first(
			checkDuration(p.GetDefaultRtt()), checkDuration(p.GetDecay()), checkDuration(p.GetPenalty()),
			checkDuration(p.GetPenaltyDecay()), checkDuration(p.GetMaxRetryAfter()),
		)
	default:
		return fmt.Errorf("unknown load %T", load)
	}
}

// checkRetry checks the timeout and the backoff of retries, which HTTP and gRPC share.
func checkRetry(r interface {
	GetBackoff() *outbound.ExponentialBackoff
	GetTimeout() *durationpb.Duration
},
) error {
	err := within("invalid timeout", checkDuration(r.GetTimeout()))
	if r.GetBackoff() != nil {
		err = first(err, within("invalid backoff", checkBackoff(r.GetBackoff())))
	}
	return err
}

// checkAccrual checks a circuit breaker. A nil a means that there is none.
func checkAccrual(a *outbound.FailureAccrual) error {
	if a == nil {
		return nil
	}
	switch kind := a.GetKind().(type) {
	case nil:
		return errors.New("missing kind")
	case *outbound.FailureAccrual_ConsecutiveFailures_:
		return first(
			required("consecutive failures backoff", kind.ConsecutiveFailures.GetBackoff() != nil),
			within("invalid backoff", checkBackoff(kind.ConsecutiveFailures.GetBackoff())),
		)
	case *outbound.FailureAccrual_Unified_:
		u := kind.Unified
		// 10 s is linkerd2-proxy's default.
		window := 10 * time.Second
		if u.GetDecay() != nil {
			window = u.GetDecay().AsDuration()
		}
		switch {
		// The negation also rejects NaN.
		case !(u.GetSuccessRateThreshold() >= 0 && u.GetSuccessRateThreshold() <= 1):
			return errors.New("invalid value: success rate threshold must be between 0.0 and 1.0")
		// With a threshold of almost 0, the window is not used.
		case u.GetSuccessRateThreshold() >= 0.00005 && window < 10*time.Millisecond:
			return errors.New("invalid value: success rate window is below the minimum length")
		case u.GetMinRequests() > 1_000_000:
			return errors.New("invalid value: success rate min_requests exceeds the supported maximum")
		}
		return first(
			required("unified backoff", u.GetBackoff() != nil),
			within("invalid success-rate window", checkDuration(u.GetDecay())),
			within("invalid backoff", checkBackoff(u.GetBackoff())),
		)
	default:
		return fmt.Errorf("unknown failure accrual %T", kind)
	}
}

// checkBackoff checks an exponential backoff, in which both durations are required.
func checkBackoff(b *outbound.ExponentialBackoff) error {
	low := b.GetMinBackoff()
	high := b.GetMaxBackoff()
	jitter := float64(b.GetJitterRatio())
	if err := first(requiredDuration("min_backoff", low), requiredDuration("max_backoff", high)); err != nil {
		return err
	}
	switch {
	case low.AsDuration() > high.AsDuration():
		return errors.New("maximum must not be less than minimum")
	case high.AsDuration() == 0:
		return errors.New("maximum must be non-zero")
	// The negation also rejects NaN.
	case !(jitter >= 0 && jitter <= 100):
		return errors.New("jitter must be from 0 to 100")
	}
	return nil
}

// checkResource returns an error if m does not fully identify a resource. An invalid port is
// fine, because linkerd2-proxy ignores it.
func checkResource(m *meta.Metadata) error {
	if m.GetKind() == nil {
		return errors.New("invalid metadata: missing kind")
	}
	// Other kinds of metadata, for defaults, consist of a name only.
	if r := m.GetResource(); r != nil {
		for _, field := range []struct{ name, value string }{
			{"group", r.GetGroup()}, {"kind", r.GetKind()}, {"name", r.GetName()}, {"namespace", r.GetNamespace()},
		} {
			if field.value == "" {
				return fmt.Errorf("invalid metadata: %s must not be empty", field.name)
			}
		}
	}
	return nil
}
