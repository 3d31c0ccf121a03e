package kube

import (
	"fmt"
	"math"
	"strconv"
	"time"

	quantity "k8s.io/apimachinery/pkg/api/resource"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// profile returns the profile of a port of s, with the routes, splits and retry budget of
// the ServiceProfile of s. It ignores an invalid ServiceProfile and logs the reason. The
// port is opaque if the opaque ports of s or of the ServiceProfile contain it.
func (l *lookup) profile(s *service, port uint16) *controller.Profile {
	p := &controller.Profile{Opaque: l.ports(s.Annotations).has(port)}
	found := get[resource[serviceProfile]](l.cluster, "ServiceProfile", s.Namespace, l.dns(kubeobject.NameOf(s)))
	if found == nil || found.spec == nil {
		return p
	}
	translated, err := translateProfile(found.spec)
	if err == nil {
		// The check requires a destination, which is not used.
		check := map[string]controller.Destination{"check.test": {Profile: translated}}
		err = controller.New(nil).Set(controller.Config{Destinations: check})
	}
	if err != nil {
		l.log.Warn("invalid ServiceProfile is ignored", "namespace", s.Namespace, "name", found.GetName(), "err", err)
		return p
	}
	_, opaque := found.spec.OpaquePorts[strconv.Itoa(int(port))]
	translated.Opaque = p.Opaque || opaque
	return translated
}

// translateProfile translates a ServiceProfile. It returns an error for a value that is
// invalid or not supported. Without a retryBudget, the result has the default budget of
// linkerd.
func translateProfile(from *serviceProfile) (*controller.Profile, error) {
	p := new(controller.Profile)
	for _, r := range from.Routes {
		to := controller.Route{Name: r.Name, Retryable: r.IsRetryable, RetryNonIdempotent: r.IsRetryable}
		if r.Condition == nil {
			return nil, fmt.Errorf("route %q: want a condition", r.Name)
		}
		to.Match = r.Condition.translate()
		if r.Timeout != "" {
			d, err := time.ParseDuration(r.Timeout)
			if err != nil {
				return nil, fmt.Errorf("route %q: timeout: %w", r.Name, err)
			}
			to.Timeout = d
		}
		for _, c := range r.ResponseClasses {
			m := c.Condition
			if m == nil || m.Status == nil || m.All != nil || m.Any != nil || m.Not != nil {
				return nil, fmt.Errorf("route %q: a response class must have the condition status", r.Name)
			}
			status := m.Status
			class := controller.ResponseClass{Min: status.Min, Max: status.Max, Failure: c.IsFailure}
			if class.Max == 0 {
				class.Max = class.Min
			}
			if class.Min == 0 {
				class.Min = class.Max
			}
			to.Classes = append(to.Classes, class)
		}
		p.Routes = append(p.Routes, to)
	}
	if b := from.RetryBudget; b != nil {
		ttl, err := time.ParseDuration(b.TTL)
		if err != nil {
			return nil, fmt.Errorf("retryBudget: ttl: %w", err)
		}
		p.Budget = &controller.RetryBudget{Ratio: b.RetryRatio, MinPerSecond: b.MinRetriesPerSecond, TTL: ttl}
	} else {
		p.Budget = &controller.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second} // of linkerd
	}
	for _, o := range from.DstOverrides {
		weight, err := parseWeight(string(o.Weight))
		if err != nil {
			return nil, err
		}
		p.Splits = append(p.Splits, controller.Split{Authority: o.Authority, Weight: weight})
	}
	return p, nil
}

// translate translates a condition with the conditions nested in it.
func (m *requestMatch) translate() controller.Match {
	to := controller.Match{Method: m.Method, Path: m.PathRegex}
	for _, inner := range m.All {
		to.All = append(to.All, inner.translate())
	}
	for _, inner := range m.Any {
		to.Any = append(to.Any, inner.translate())
	}
	if m.Not != nil {
		inner := m.Not.translate()
		to.Not = &inner
	}
	return to
}

// parseWeight returns the weight of a split in thousandths, as linkerd sends it. The text
// is a quantity of Kubernetes: "1", "0.5" or "500m".
func parseWeight(text string) (uint32, error) {
	q, err := quantity.ParseQuantity(text)
	if err != nil || q.Sign() < 0 || q.MilliValue() > math.MaxInt32 {
		return 0, fmt.Errorf("dstOverrides: weight %q must be a quantity, such as 500m", text)
	}
	return uint32(q.MilliValue()), nil
}
