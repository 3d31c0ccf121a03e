package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
	"github.com/gotower/gotower/internal/yamlfile"
)

// profile returns the profile for a port of s, with the routes, splits and retry budget from its
// ServiceProfile. An invalid ServiceProfile is logged and ignored. The port is opaque if either
// the Service or the ServiceProfile says so.
func (l *lookup) profile(s *service, port uint16) *controller.Profile {
	p := controller.Profile{Opaque: l.servicePorts(s).has(port)}
	// A ServiceProfile is named after the Service's DNS name.
	found := get[resource[serviceProfile]](l.cluster, "ServiceProfile", s.Namespace, l.dns(kubeobject.NameOf(s)))
	if found == nil || found.spec == nil {
		return &p
	}
	if err := found.spec.err; err != nil {
		l.log.Warn("invalid ServiceProfile is ignored", "namespace", s.Namespace, "name", found.GetName(), "err", err)
		return &p
	}
	// The Service's annotation stays valid when the profile is replaced below.
	opaque := p.Opaque || found.spec.opaque[port]
	p = found.spec.profile
	p.Opaque = opaque
	return &p
}

// ValidateServiceProfile returns an error unless the controller can serve the ServiceProfile in
// text, which is JSON. The error says where the first mistake is, and what is allowed there. The
// rules include those of linkerd's own webhook.
func ValidateServiceProfile(text []byte, clusterDomain string) error {
	var o struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec serviceProfile `json:"spec"`
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	zone := "." + o.Namespace + ".svc." + clusterDomain
	// Clients look for a ServiceProfile by the full name of the Service.
	service, ok := strings.CutSuffix(o.Name, zone)
	if !ok || len(validation.IsDNS1123Label(service)) > 0 {
		reason := "want SERVICE" + zone + " for a Service in the same namespace"
		return &controller.Error{Field: "metadata.name", Value: o.Name, Reason: reason}
	}
	return o.Spec.err
}

// serviceProfile is the spec of linkerd's ServiceProfile. If it is invalid or has values that are
// not supported, err is the first mistake, and the other fields are empty.
type serviceProfile struct {
	profile controller.Profile
	opaque  map[uint16]bool
	err     error
}

// UnmarshalJSON parses a spec. It stores a mistake in err, so that the controller can log it.
func (p *serviceProfile) UnmarshalJSON(text []byte) error {
	roots, err := yamlfile.Documents("", text, 1)
	if err != nil {
		// An error means that text is no JSON at all. Other mistakes are kept in p.err.
		return err
	}
	// JSON is also YAML, so the decoder of the file format can check the spec.
	v := yamlfile.Value{File: yamlfile.NewFile("", text), Node: roots[0], Path: "spec"}
	decoder := yamlfile.Decoder{Empty: true, Parse: parseProfileScalar, Special: rejectQuoted, Check: checkProfile}
	var spec profileYAML
	decoder.Decode(v, &spec)
	opaque := make(map[uint16]bool, len(spec.OpaquePorts))
	for text := range spec.OpaquePorts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			v.At("opaquePorts").At(text).Failf("want a port from 1 to 65535 as the name of a field")
		}
		opaque[uint16(port)] = true
	}
	if len(v.Mistakes) > 0 {
		// Only the first mistake fits into a log line.
		p.err = errors.New(v.Mistakes[0].Mistake())
		return nil
	}
	profile := spec.profile()
	// Validate names the fields of the controller's profile. The user knows those of the ServiceProfile.
	if mistake, ok := errors.AsType[*controller.Error](profile.Validate()); ok {
		names := strings.NewReplacer("match", "condition", ".path", ".pathRegex", "splits", "dstOverrides")
		mistake.Field = "spec." + names.Replace(mistake.Field)
		p.err = mistake
		return nil
	}
	p.profile = profile
	p.opaque = opaque
	return nil
}

// The structs below define a ServiceProfile's spec, with tags for [yamlfile.Decoder].
type (
	profileYAML struct {
		Routes       []profileRoute      `yaml:"routes"`
		RetryBudget  *profileBudget      `yaml:"retryBudget"`
		DstOverrides []profileSplit      `yaml:"dstOverrides"`
		OpaquePorts  map[string]struct{} `yaml:"opaquePorts"`
	}

	profileRoute struct {
		Name            string         `yaml:"name" is:"required"`
		Condition       requestMatch   `yaml:"condition" is:"required"`
		ResponseClasses []profileClass `yaml:"responseClasses"`
		IsRetryable     bool           `yaml:"isRetryable"`
		Timeout         profileTimeout `yaml:"timeout"`
	}

	requestMatch struct {
		All       []requestMatch `yaml:"all"`
		Any       []requestMatch `yaml:"any"`
		Not       *requestMatch  `yaml:"not"`
		PathRegex string         `yaml:"pathRegex"`
		Method    string         `yaml:"method"`
	}

	profileClass struct {
		Condition struct {
			Status profileStatus `yaml:"status" is:"required"`
		} `yaml:"condition" is:"required"`
		IsFailure bool `yaml:"isFailure"`
	}

	// profileStatus is a range. A limit of 0 equals the other one.
	profileStatus struct {
		Min uint32 `yaml:"min"`
		Max uint32 `yaml:"max"`
	}

	profileBudget struct {
		RetryRatio          float64       `yaml:"retryRatio" min:"0" max:"1000"`
		MinRetriesPerSecond uint32        `yaml:"minRetriesPerSecond" max:"2147483647"`
		TTL                 time.Duration `yaml:"ttl" is:"required" min:"1s" max:"1m"`
	}

	profileSplit struct {
		Authority string        `yaml:"authority" is:"required"`
		Weight    profileWeight `yaml:"weight" is:"required"`
	}

	// profileTimeout is a duration, or 0 for an empty text.
	profileTimeout time.Duration

	// profileWeight is a split's weight in thousandths, the unit in which linkerd sends it. Its
	// text is a Kubernetes quantity such as "1", "0.5" or "500m".
	profileWeight uint32
)

// parseProfileScalar returns a function that sets target from a value's text, or nil for types
// without a syntax of their own.
func parseProfileScalar(target any) func(string) error {
	switch v := target.(type) {
	case *profileTimeout:
		return func(text string) error {
			d, err := time.ParseDuration(text)
			// Linkerd treats an empty timeout as none.
			if err != nil && text != "" {
				return errors.New("a duration, such as 250ms or 10s")
			}
			*v = profileTimeout(d)
			return nil
		}
	case *profileWeight:
		return func(text string) error {
			q, err := quantity.ParseQuantity(text)
			// The limit is the largest int32 in thousandths.
			if err != nil || q.Sign() < 0 || q.MilliValue() > math.MaxInt32 {
				return errors.New("a quantity from 0 to 2147483, such as 500m")
			}
			*v = profileWeight(q.MilliValue())
			return nil
		}
	}
	return nil
}

// rejectQuoted reports a string instead of a number or a boolean as a mistake.
func rejectQuoted(v yamlfile.Value, target any) bool {
	switch target.(type) {
	case *uint32, *float64, *bool:
		// The decoder would accept the text "1" for a number. Kubernetes does not.
		if v.Node.ShortTag() == "!!str" {
			v.Failf("want a value without quotes")
			return true
		}
	}
	return false
}

// checkProfile reports violations of rules that the tags of target do not express. The decoder calls it for each
// struct whose fields are valid.
func checkProfile(v yamlfile.Value, target any) {
	switch s := target.(type) {
	case *requestMatch:
		// Without a condition, linkerd's controller rejects the route.
		if s.Method == "" && s.PathRegex == "" && len(s.All) == 0 && len(s.Any) == 0 && s.Not == nil {
			v.Failf("want method, pathRegex, all, any or not; pathRegex: /.* matches everything")
		}
	case *profileStatus:
		if c := s.class(); c.Min < 100 || c.Max > 599 || c.Min > c.Max {
			v.Rejectf(fmt.Sprintf("%d-%d", c.Min, c.Max), "want a range within 100-599")
		}
	}
}

// profile returns the profile that a valid spec describes. If retryBudget is missing, linkerd's
// default budget applies.
func (s *profileYAML) profile() controller.Profile {
	p := controller.Profile{Budget: &controller.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second}}
	if b := s.RetryBudget; b != nil {
		p.Budget = &controller.RetryBudget{Ratio: b.RetryRatio, MinPerSecond: b.MinRetriesPerSecond, TTL: b.TTL}
	}
	for _, r := range s.Routes {
		route := controller.Route{
			Name: r.Name, Match: r.Condition.match(), Timeout: time.Duration(r.Timeout),
			// A ServiceProfile's isRetryable applies to all methods.
			Retryable: r.IsRetryable, RetryNonIdempotent: r.IsRetryable,
		}
		for _, c := range r.ResponseClasses {
			class := c.Condition.Status.class()
			class.Failure = c.IsFailure
			route.Classes = append(route.Classes, class)
		}
		p.Routes = append(p.Routes, route)
	}
	for _, o := range s.DstOverrides {
		p.Splits = append(p.Splits, controller.Split{Authority: o.Authority, Weight: uint32(o.Weight)})
	}
	return p
}

// class returns the range as a response class. A missing limit equals the other one.
func (s profileStatus) class() controller.ResponseClass {
	c := controller.ResponseClass{Min: s.Min, Max: s.Max}
	if c.Max == 0 {
		c.Max = c.Min
	}
	if c.Min == 0 {
		c.Min = c.Max
	}
	return c
}

// match returns the condition as the controller's, including nested ones.
func (m *requestMatch) match() controller.Match {
	match := controller.Match{Method: m.Method, Path: m.PathRegex}
	// Not is a pointer, so the result needs a variable.
	for _, inner := range m.All {
		match.All = append(match.All, inner.match())
	}
	for _, inner := range m.Any {
		match.Any = append(match.Any, inner.match())
	}
	if m.Not != nil {
		inner := m.Not.match()
		match.Not = &inner
	}
	return match
}
