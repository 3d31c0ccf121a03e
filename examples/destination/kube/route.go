package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apimeta "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// object is a mapping in the format of the controller's configuration file. Routes and
// policies are translated to this format, because [controller.Parse] then checks and
// converts them.
type object = map[string]any

// policyFields has each kind of route with its field in the configuration file, in the
// order of precedence. A port of a Service uses the routes of only one kind, the first in
// the list that has routes for the port.
var policyFields = [...]struct{ kind, field string }{ //nolint:gochecknoglobals // constant
	{"GRPCRoute", "grpcRoutes"}, {"HTTPRoute", "httpRoutes"},
}

// policy returns the outbound policy of a port of s. If neither routes nor annotations
// configure a policy, it returns nil, which means the default policy. If opaque is true,
// it ignores routes. It also leaves out invalid routes. The status of such a route
// contains the reason. It ignores and logs invalid annotations of s.
func (l *lookup) policy(s *service, port uint16, opaque bool) *outbound.OutboundPolicy {
	policy := make(object)
	annotated := func(field string, value any) {
		if err := l.checkOutbound(field, value); err != nil {
			l.log.Warn("invalid annotations are ignored", "service", kubeobject.NameOf(s), "err", err)
			return
		}
		policy[field] = value
	}
	if accrual := accrualOf(s.Annotations); accrual != nil {
		annotated("failureAccrual", accrual)
	}
	named := false
	for _, f := range policyFields {
		routes := l.attached(f.kind, s, port)
		if len(routes) == 0 || opaque || named {
			continue
		}
		named = true
		var translated []object
		for _, r := range routes {
			if to, err := l.outboundRoute(r, s.Annotations); err == nil && l.checkOutbound(f.field, []object{to}) == nil {
				translated = append(translated, to)
			}
		}
		if len(translated) > 0 {
			policy[f.field] = translated
		}
	}
	if rule := annotatedRule("HTTPRoute", s.Annotations, nil); !named && !opaque && len(rule) > 0 {
		annotated("httpRoutes", []object{{"name": defaultRoute, "rules": []object{rule}}})
	}
	if len(policy) == 0 {
		return nil
	}
	name := fmt.Sprintf("%s:%d", l.dns(kubeobject.NameOf(s)), port)
	destination := object{"policy": policy}
	if opaque {
		destination["profile"] = object{"opaque": true}
	}
	cfg, err := l.parseDestinations(name, destination, policy)
	if err != nil {
		l.log.Warn("invalid policy is ignored", "service", kubeobject.NameOf(s), "err", err)
		return nil
	}
	msg := cfg.Destinations[name].Policy
	setMetadata(msg, s.Namespace, named)
	return msg
}

// defaultRoute is the name of the route for a Service that has no routes, but has
// annotations for retries or timeouts.
const defaultRoute = "http"

// attached returns the routes of the given kind that have s, or the given port of s, as a
// parent. The routes must be in the namespace of s.
func (c *cluster) attached(kind string, s *service, port uint16) []*resource[route] {
	return slices.DeleteFunc(list[resource[route]](c, kind, byParent, "Service/"+s.Namespace+"/"+s.Name), func(r *resource[route]) bool {
		return r.GetNamespace() != s.Namespace || !slices.ContainsFunc(r.spec.ParentRefs, func(p kubeobject.ParentReference) bool {
			kind, name := parentOf(r, &p)
			return kind == "Service" && name == kubeobject.NameOf(s) && kubeobject.Or(p.Port, int(port)) == int(port)
		})
	})
}

// parentOf returns the kind and the name of the object to which p, a parent reference of
// the route r, refers. The kind is "" if the object is neither a Service nor a Server.
func parentOf(r *resource[route], p *kubeobject.ParentReference) (string, kubeobject.Name) {
	kind, name := p.Object(r.GetNamespace(), gatewayGroup, "Gateway")
	switch {
	case kind.Kind == "Service" && (*kind.Group == "" || *kind.Group == "core"):
		return kind.Kind, name
	case kind.Kind == "Server" && *kind.Group == policyGroup:
		return kind.Kind, name
	}
	return "", name
}

// outboundRoute translates the route r of a Service with the given annotations. The
// timeouts of a rule override those of annotations. outboundRoute returns an error for a
// part that is not supported.
func (l *lookup) outboundRoute(r *resource[route], annotations map[string]string) (object, error) {
	return translateRoute(r, func(from rule) (object, error) {
		to := annotatedRule(r.GetKind(), annotations, r.GetAnnotations())
		timeouts, _ := to["timeouts"].(object)
		for field, value := range from.Timeouts {
			if d, err := time.ParseDuration(fmt.Sprint(value)); err == nil && d == 0 {
				delete(timeouts, field) // no timeout
				continue
			}
			if timeouts == nil {
				timeouts = make(object)
			}
			timeouts[field] = value
		}
		if len(timeouts) > 0 {
			to["timeouts"] = timeouts
		}
		if from.Retry != nil {
			return nil, errors.New("retry is not supported; use the annotations retry.linkerd.io")
		}
		var backends []object
		for _, b := range from.BackendRefs {
			kind, name := b.Object(r.GetNamespace(), "", "Service")
			ref := object{"name": l.dns(name), "weight": kubeobject.Or(b.Weight, 1)}
			if b.Port != nil {
				ref["port"] = *b.Port
			}
			if kind.Kind != "Service" || *kind.Group != "" {
				ref["name"] = name.Name + "." + strings.ToLower(kind.Kind) + ".invalid"
			}
			if len(b.Filters) > 0 {
				ref["filters"] = b.Filters
			}
			backends = append(backends, ref)
		}
		if backends != nil {
			to["backendRefs"] = backends
		}
		return to, nil
	})
}

// translateRoute translates the route r to the format of the configuration file. The function
// ruleOf translates a rule, except its matches and filters.
func translateRoute(r *resource[route], ruleOf func(rule) (object, error)) (object, error) {
	to := object{"name": r.GetName()}
	if len(r.spec.Hostnames) > 0 {
		to["hostnames"] = r.spec.Hostnames
	}
	rules := make([]object, 0, len(r.spec.Rules))
	for _, from := range r.spec.Rules {
		if from.Persistence != nil {
			return nil, errors.New("sessionPersistence is not supported")
		}
		rule, err := ruleOf(from)
		if err != nil {
			return nil, err
		}
		var matches []object
		for _, m := range from.Matches {
			if method, ok := m["method"].(map[string]any); ok && method["type"] == "Exact" { // the default, of a GRPCRoute
				method = maps.Clone(method)
				delete(method, "type")
				m = maps.Clone(m)
				m["method"] = method
			}
			matches = append(matches, m)
		}
		if matches != nil {
			rule["matches"] = matches
		}
		if len(from.Filters) > 0 {
			rule["filters"] = from.Filters
		}
		rules = append(rules, rule)
	}
	if len(rules) == 0 {
		rules = append(rules, object{})
	}
	to["rules"] = rules
	return to, nil
}

// annotatedRule returns a rule with the timeouts and the retry that annotations configure.
// The argument kind is the kind of the route. The arguments service and route have the
// annotations of the Service and of the route. Those of the route take precedence.
func annotatedRule(kind string, service, route map[string]string) object {
	value := func(name string) string { return cmp.Or(route[name], service[name]) }
	rule, timeouts, retry := make(object), make(object), make(object)
	for annotation, field := range map[string]string{"request": "request", "response": "backendRequest", "idle": "idle"} {
		if v := value(timeoutPrefix + annotation); v != "" {
			timeouts[field] = v
		}
	}
	if len(timeouts) > 0 {
		rule["timeouts"] = timeouts
	}
	conditions := value(retryPrefix + map[string]string{"HTTPRoute": "http", "GRPCRoute": "grpc"}[kind])
	if conditions == "" {
		return rule
	}
	retry["conditions"] = strings.Split(conditions, ",")
	for _, field := range []string{"limit", "timeout"} {
		if v := value(retryPrefix + field); v != "" {
			retry[field] = v
		}
	}
	rule["retry"] = retry
	return rule
}

// accrualOf returns the failure accrual that the annotations of a Service configure. It
// returns nil if they do not enable failure accrual.
func accrualOf(annotations map[string]string) object {
	if annotations[balancerPrefix+"failure-accrual"] != "consecutive" {
		return nil
	}
	accrual := make(object)
	for annotation, field := range map[string]string{
		"max-failures": "maxFailures", "min-penalty": "minPenalty", "max-penalty": "maxPenalty", "jitter-ratio": "jitterRatio",
	} {
		if v := annotations[balancerPrefix+"failure-accrual-consecutive-"+annotation]; v != "" {
			accrual[field] = v
		}
	}
	return accrual
}

// checkOutbound returns an error if value is invalid as the given field of an outbound policy
// in the configuration file, such as "httpRoutes".
func (l *lookup) checkOutbound(field string, value any) error {
	policy := object{field: value}
	_, err := l.parseDestinations("check.test", object{"policy": policy}, policy)
	return err
}

// parseDestinations returns a configuration with the object destination under the given name, or
// an error if this object is invalid. The argument policy is the outbound policy in this object.
// The Services to which the policy refers also become destinations, because requests to a
// backend without a destination fail.
func (l *lookup) parseDestinations(name string, destination, policy object) (controller.Config, error) {
	all := object{}
	for _, f := range policyFields {
		routes, _ := policy[f.field].([]object)
		for _, r := range routes {
			rules, _ := r["rules"].([]object)
			for _, rule := range rules {
				backends, _ := rule["backendRefs"].([]object)
				for _, b := range backends {
					if host, port := fmt.Sprint(b["name"]), fmt.Sprint(b["port"]); l.exists(host, port) {
						all[host+":"+port] = object{}
					}
				}
			}
		}
	}
	all[name] = destination
	return parse(object{"destinations": all})
}

// exists reports whether a Service with the DNS name host has the port.
func (l *lookup) exists(host, port string) bool {
	_, name, ok := l.parse(host)
	if !ok {
		return false
	}
	s := l.service(name)
	return s != nil && slices.ContainsFunc(s.ports, func(p namedPort) bool { return strconv.Itoa(int(p.port)) == port })
}

// parse converts file to a configuration. The error has only the reasons of the mistakes
// and not their lines, because file is generated.
func parse(file object) (controller.Config, error) {
	text, err := json.Marshal(file)
	if err != nil {
		return controller.Config{}, err
	}
	cfg, err := controller.Parse("", text)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return cfg, err
	}
	var reasons []string
	for _, e := range joined.Unwrap() {
		if at, ok := errors.AsType[*controller.FileError](e); ok {
			reasons = append(reasons, at.Reason)
		}
	}
	return cfg, errors.New(strings.Join(reasons, "; "))
}

// setMetadata states in the metadata of each route in msg where the route comes from. If named
// is true, it comes from an object of the cluster, and the metadata gets the given namespace.
// Otherwise it comes from annotations of a Service, and the metadata contains only the name
// [defaultRoute].
func setMetadata(msg *outbound.OutboundPolicy, namespace string, named bool) {
	set := func(m *apimeta.Metadata) {
		if r := m.GetResource(); r != nil && named {
			r.Namespace = namespace
		} else if r != nil {
			m.Kind = &apimeta.Metadata_Default{Default: defaultRoute}
		}
	}
	http := func(routes []*outbound.HttpRoute) {
		for _, r := range routes {
			set(r.GetMetadata())
		}
	}
	http(msg.GetProtocol().GetDetect().GetHttp1().GetRoutes()) // http2 has the same routes
	http(msg.GetProtocol().GetHttp1().GetRoutes())
	http(msg.GetProtocol().GetHttp2().GetRoutes())
	for _, r := range msg.GetProtocol().GetGrpc().GetRoutes() {
		set(r.GetMetadata())
	}
}
