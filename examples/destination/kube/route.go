package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	apimeta "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// object is a mapping in the controller's configuration file. Routes and policies are translated
// to this format first, so that package controller can check and convert objects from a cluster
// just as it does those in a file.
type object = map[string]any

// routeFields lists the configuration file's fields for routes in order of precedence, and which
// kinds go into each. A port of a parent uses only one field: the first that contains routes for
// it.
var routeFields = [...]struct { //nolint:gochecknoglobals // constant
	field string
	kinds []string
}{
	{"grpcRoutes", []string{"GRPCRoute"}},
	{"httpRoutes", []string{"HTTPRoute", linkerdHTTPRoute}},
	{"tlsRoutes", []string{"TLSRoute"}},
	{"tcpRoutes", []string{"TCPRoute"}},
}

// linkerdHTTPRoute is the kind of an HTTPRoute in the group policy.linkerd.io, named apart from
// the Gateway API's HTTPRoute.
const linkerdHTTPRoute = "HTTPRoute." + policyGroup

// kindOf returns the kind of o as a key of [resources].
func kindOf(o *unstructured.Unstructured) string {
	if o.GetKind() == "HTTPRoute" && o.GroupVersionKind().Group == policyGroup {
		return linkerdHTTPRoute
	}
	return o.GetKind()
}

// parent is what outbound routes are attached to: a Service or an EgressNetwork.
type parent struct {
	kind string
	kubeobject.Name

	annotations map[string]string
	host        string // the destination's name in the configuration file
}

func (c *cluster) parentService(s *service) parent {
	name := kubeobject.NameOf(s)
	return parent{"Service", name, s.Annotations, c.dns(name)}
}

// policy returns the outbound policy for a port of p, as clients in the given namespace see it.
// The result is nil, which means the default policy, if neither routes nor annotations configure
// anything. For an opaque port, only a TCPRoute counts. Invalid routes are left out, and their
// status says why; invalid annotations are logged and ignored. The caller may pass other fields
// of the policy in policy, which is extended in place.
//
//nolint:gocyclo // one case for each kind of route
func (l *lookup) policy(p parent, port uint16, opaque bool, clients string, policy object) *outbound.OutboundPolicy {
	// annotated adds what annotations configure. A mistake in them must not affect the routes.
	annotated := func(field string, value any) {
		if err := l.checkOutbound(p, field, value); err != nil {
			l.log.Warn("invalid annotations are ignored", "kind", p.kind, "name", p.Name, "err", err)
			return
		}
		policy[field] = value
	}
	if accrual := accrualOf(p.annotations); accrual != nil {
		annotated("failureAccrual", accrual)
	}
	if biaser := biaserOf(p.annotations); biaser != nil {
		annotated("loadBiaser", biaser)
	}
	// named is true once a field of routeFields has routes. Later fields are then ignored.
	named := false
	for _, f := range routeFields {
		routes := l.attached(f.kinds, p, port, clients)
		if len(routes) == 0 || named || opaque && f.field != "tcpRoutes" {
			continue
		}
		named = true
		var translated []object
		for _, r := range routes {
			if route, err := l.outboundRoute(r, p); err == nil && l.checkOutbound(p, f.field, []object{route}) == nil {
				translated = append(translated, route)
			}
		}
		if f.field == "tcpRoutes" && len(translated) > 1 {
			translated = translated[:1] // each of them matches every connection, so the first wins
		}
		if len(translated) > 0 {
			policy[f.field] = translated
		}
	}
	// Without routes, annotations apply to a default route. A policy that denies traffic has no requests to retry.
	if rule := annotatedRule("HTTPRoute", p.annotations, nil); !named && !opaque && len(rule) > 0 && policy["trafficPolicy"] != "Deny" {
		annotated("httpRoutes", []object{{"name": defaultRoute, "rules": []object{rule}}})
	}
	// nil means the default policy, which saves a message.
	if len(policy) == 0 {
		return nil
	}
	msg, err := controller.OutboundPolicy(net.JoinHostPort(p.host, strconv.Itoa(int(port))), policy, opaque, l.exists)
	if err != nil {
		l.log.Warn("invalid policy is ignored", "kind", p.kind, "name", p.Name, "err", err)
		return nil
	}
	setMetadata(msg)
	return msg
}

// defaultRoute names the route of a Service that has annotations for retries or timeouts, but no
// routes. The slash keeps it apart from the names of Kubernetes objects.
const defaultRoute = "default/http"

// attached returns the routes whose parent is p, or the given port of p, oldest first. Routes in
// the same namespace as p apply to all clients, and those in another namespace only to the
// clients there.
func (c *cluster) attached(kinds []string, p parent, port uint16, clients string) (all []*resource[route]) {
	for _, kind := range kinds {
		for _, r := range list[resource[route]](c, kind, byParent, p.kind+"/"+p.Name.String()) {
			if r.GetNamespace() != p.Namespace && r.GetNamespace() != clients {
				continue
			}
			// One reference to p is enough. A reference without a port means all ports.
			if slices.ContainsFunc(r.spec.ParentRefs, func(ref kubeobject.ParentReference) bool {
				kind, name := parentOf(r, &ref)
				return kind == p.kind && name == p.Name && kubeobject.Or(ref.Port, int(port)) == int(port)
			}) {
				all = append(all, r)
			}
		}
	}
	// list sorts the routes of one kind only.
	if len(kinds) > 1 {
		slices.SortStableFunc(all, older)
	}
	return all
}

// parentOf returns the kind and name that the parent reference p in the route r refers to. The
// kind is "" unless it is a Service, an EgressNetwork or a Server.
func parentOf(r *resource[route], p *kubeobject.ParentReference) (string, kubeobject.Name) {
	kind, name := p.Object(r.GetNamespace(), gatewayGroup, "Gateway")
	switch {
	case kind.Kind == "Service" && (*kind.Group == "" || *kind.Group == "core"):
		return kind.Kind, name
	case (kind.Kind == "Server" || kind.Kind == "EgressNetwork") && *kind.Group == policyGroup:
		return kind.Kind, name
	}
	return "", name
}

// outboundRoute translates p's route r. Timeouts in a rule override those in annotations. It is
// an error if r uses something that is not supported.
func (l *lookup) outboundRoute(r *resource[route], p parent) (object, error) {
	// The function translates what only outbound rules have.
	return translateRoute(r, func(from rule) (object, error) {
		translated := annotatedRule(r.GetKind(), p.annotations, r.GetAnnotations())
		// timeouts is nil without annotations.
		timeouts, _ := translated["timeouts"].(object)
		for field, value := range from.Timeouts {
			if d, err := time.ParseDuration(fmt.Sprint(value)); err == nil && d == 0 {
				delete(timeouts, field) // 0 turns the timeout off
				continue
			}
			if timeouts == nil {
				timeouts = make(object)
			}
			timeouts[field] = value
		}
		if len(timeouts) > 0 {
			translated["timeouts"] = timeouts
		}
		// The Gateway API's retry differs from linkerd's annotations.
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
			// Only Services have endpoints. Any other kind becomes a name that does not exist, so requests to it
			// fail.
			switch {
			case kind.Kind == p.kind && name == p.Name && *kind.Group == policyGroup: // the EgressNetwork itself
				ref["name"] = p.host
			case kind.Kind != "Service" || *kind.Group != "" && *kind.Group != "core":
				ref["name"] = name.Name + "." + strings.ToLower(kind.Kind) + ".invalid"
			}
			if len(b.Filters) > 0 {
				ref["filters"] = b.Filters
			}
			backends = append(backends, ref)
		}
		// An empty list would mean something else than a missing one.
		if backends != nil {
			translated["backendRefs"] = backends
		}
		return translated, nil
	})
}

// translateRoute translates r to the configuration file's format. ruleOf translates everything in
// a rule except matches and filters.
func translateRoute(r *resource[route], ruleOf func(rule) (object, error)) (object, error) {
	translated := object{"name": resourceName(r)}
	if len(r.spec.Hostnames) > 0 {
		translated["hostnames"] = r.spec.Hostnames
	}
	rules := make([]object, 0, len(r.spec.Rules))
	for _, source := range r.spec.Rules {
		// Ignoring the field would break applications that rely on it.
		if source.Persistence != nil {
			return nil, errors.New("sessionPersistence is not supported")
		}
		rule, err := ruleOf(source)
		if err != nil {
			return nil, err
		}
		var matches []object
		for _, m := range source.Matches {
			// Exact is a GRPCRoute's default. The file format does not know the field.
			if method, ok := m["method"].(map[string]any); ok && method["type"] == "Exact" {
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
		if len(source.Filters) > 0 {
			rule["filters"] = source.Filters
		}
		rules = append(rules, rule)
	}
	// A route without rules matches everything.
	if len(rules) == 0 {
		rules = append(rules, object{})
	}
	translated["rules"] = rules
	return translated, nil
}

// annotatedRule returns a rule with the timeouts and retries that annotations configure, for a
// route of the given kind. The route's annotations take precedence over the Service's.
func annotatedRule(kind string, service, route map[string]string) object {
	protocol := map[string]string{"HTTPRoute": "http", "GRPCRoute": "grpc"}[kind]
	if protocol == "" { // this kind routes connections, which cannot be retried
		return make(object)
	}
	// value returns an annotation of the route, or else of the Service.
	value := func(name string) string { return cmp.Or(route[name], service[name]) }
	rule := make(object)
	timeouts := make(object)
	retry := make(object)
	// Linkerd's names of timeouts differ from those of the Gateway API.
	for annotation, field := range map[string]string{"request": "request", "response": "backendRequest", "idle": "idle"} {
		if v := value(timeoutPrefix + annotation); v != "" {
			timeouts[field] = v
		}
	}
	if len(timeouts) > 0 {
		rule["timeouts"] = timeouts
	}
	// Without conditions, nothing is retried, so the other annotations have no effect.
	conditions := value(retryPrefix + protocol)
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

// accrualOf returns the failure accrual that a Service's annotations configure, or nil if they do
// not enable it.
func accrualOf(annotations map[string]string) object {
	accrual := make(object)
	// fields copies the annotations with prefix to the fields of the file format.
	fields := func(prefix string, names map[string]string) {
		for annotation, field := range names {
			if v := annotations[prefix+annotation]; v != "" {
				accrual[field] = strings.TrimSpace(v)
			}
		}
	}
	switch annotations[balancerPrefix+"failure-accrual"] {
	case "unified":
		accrual["successRateThreshold"] = "0.8" // linkerd's default
		fields(alphaPrefix+"failure-accrual-success-rate-", map[string]string{
			"threshold": "successRateThreshold", "window": "successRateWindow", "min-requests": "successRateMinRequests",
		})
	// The fields of this kind are added below, and belong to "unified" too.
	case "consecutive":
	default:
		return nil
	}
	fields(balancerPrefix+"failure-accrual-consecutive-", map[string]string{
		"max-failures": "maxFailures", "min-penalty": "minPenalty", "max-penalty": "maxPenalty", "jitter-ratio": "jitterRatio",
	})
	return accrual
}

// biaserOf returns the load biaser that a Service's annotations configure, or nil if they do not
// enable it.
func biaserOf(annotations map[string]string) object {
	enabled, err := strconv.ParseBool(strings.TrimSpace(annotations[alphaPrefix+"penalize-failures"]))
	if err != nil || !enabled {
		return nil
	}
	biaser := make(object)
	// The values are only validated later, with the rest of the policy.
	for annotation, field := range map[string]string{
		"load-biaser-penalty": "penalty", "load-biaser-max-retry-after": "maxRetryAfter",
	} {
		if v := annotations[alphaPrefix+annotation]; v != "" {
			biaser[field] = strings.TrimSpace(v)
		}
	}
	return biaser
}

// checkOutbound returns an error if value is invalid in the given field of p's outbound policy,
// such as "httpRoutes".
func (l *lookup) checkOutbound(p parent, field string, value any) error {
	_, err := controller.OutboundPolicy(net.JoinHostPort(p.host, "80"), object{field: value}, false, l.exists) // not opaque
	return inResource(err, field)
}

// inResource makes err, which is about a configuration translated from a Kubernetes object, fit for the
// object's status: it puts err on one line, and rewrites its paths. A path such as
// "httpRoutes[0].rules", to the only item of the configuration's list field, becomes "spec.rules".
func inResource(err error, field string) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.NewReplacer("\n", "; ", field+"[0].", "spec.").Replace(err.Error()))
}

// exists reports whether host names a Service that declares the port.
func (l *lookup) exists(host string, port uint16) bool {
	_, name, ok := l.parse(host)
	if !ok {
		return false
	}
	s := l.service(name)
	return s != nil && slices.ContainsFunc(s.ports, func(p namedPort) bool { return p.port == port })
}

// resourceName returns a name for r that is unique in a policy, where routes from two namespaces
// or groups can share a name. [setMetadata] replaces it in the end.
func resourceName(r *resource[route]) string {
	return strings.Join([]string{r.GroupVersionKind().Group, r.GetKind(), r.GetNamespace(), r.GetName()}, "/")
}

// setMetadata records in each route's metadata where the route came from. A [resourceName]
// becomes a reference to an object in the cluster. A route that was made from annotations only
// gets the name http.
func setMetadata(msg proto.Message) {
	eachMessage(msg.ProtoReflect(), func(m *apimeta.Metadata) {
		r := m.GetResource()
		// A resourceName has four parts: group, kind, namespace and name.
		if parts := strings.Split(r.GetName(), "/"); len(parts) == 4 {
			r.Group = parts[0]
			r.Kind = parts[1]
			r.Namespace = parts[2]
			r.Name = parts[3]
		} else if r.GetName() == defaultRoute {
			m.Kind = &apimeta.Metadata_Default{Default: "http"}
		}
	})
}

// eachMessage calls visit for m and all messages inside it that have the type M.
func eachMessage[M proto.Message](m protoreflect.Message, visit func(M)) {
	if found, ok := m.Interface().(M); ok {
		visit(found)
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		// A scalar or a map contains no message of interest.
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			for i := range v.List().Len() {
				eachMessage(v.List().Get(i).Message(), visit)
			}
		default:
			eachMessage(v.Message(), visit)
		}
		return true
	})
}
