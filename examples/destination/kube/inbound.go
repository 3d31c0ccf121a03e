package kube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// Server implements [controller.Source]. token identifies a pod or an ExternalWorkload with the
// JSON text that linkerd's injector sets, such as {"ns":"default","pod":"web-1"} or
// {"ns":"default","external_workload":"vm-1"}. A workload that does not exist gets the settings'
// default policy.
func (c *cluster) Server(token string, port uint16) (*inbound.Server, []controller.Object) {
	l := c.look()
	var id struct {
		NS       string `json:"ns"`
		Pod      string `json:"pod"`
		External string `json:"external_workload"`
	}
	if err := json.Unmarshal([]byte(token), &id); err != nil {
		id.NS, id.Pod, _ = strings.Cut(token, ":") // old proxies send namespace:pod
	}
	var w workload
	if id.External != "" {
		if found := l.external(kubeobject.Name{Namespace: id.NS, Name: id.External}); found != nil {
			w = externalOf(found)
		}
	} else {
		l.use(usesPod, id.NS, id.Pod)
		if p := get[pod](c, "Pod", id.NS, id.Pod); p != nil {
			w = podOf(p)
		}
	}
	// The workload does not exist, or not yet. It gets the cluster's default.
	if w.namespace == "" {
		return controller.DefaultServer(c.settings.DefaultInbound, c.settings.ClusterNetworks, c.opaque.has(port)), l.uses()
	}
	if s := l.serverOf(w, port); s != nil {
		return l.inbound(s, port), l.uses()
	}
	return controller.DefaultServer(c.access(w), c.settings.ClusterNetworks, c.ports(w.annotations).has(port)), l.uses()
}

// access returns the policy for the ports of w that no Server selects: the annotation
// default-inbound-policy if it is valid, and otherwise the settings' DefaultInbound.
func (c *cluster) access(w workload) controller.AccessPolicy {
	if access := w.annotations[defaultInbound]; slices.Contains(controller.AccessPolicies(), access) {
		return controller.AccessPolicy(access)
	}
	return c.settings.DefaultInbound
}

// serverOf returns the Server that selects a port of w, or nil. The oldest one wins.
func (l *lookup) serverOf(w workload, port uint16) *resource[server] {
	// A change to any Server in the namespace may change the result.
	l.use(usesPolicy, w.namespace, "")
	for _, s := range list[resource[server]](l.cluster, "Server", cache.NamespaceIndex, w.namespace) {
		if s.spec != nil && s.spec.selects(w, port) {
			return s
		}
	}
	return nil
}

// selects reports whether s selects this port of w. A Server refers to a port by number or by
// name.
func (s *server) selects(w workload, port uint16) bool {
	// A Server selects either pods or ExternalWorkloads, with different fields.
	labelSelector := s.PodSelector
	if w.external {
		labelSelector = s.External
	}
	if labelSelector == nil {
		return false
	}
	// An invalid selector selects nothing.
	selector, err := metav1.LabelSelectorAsSelector(labelSelector)
	if err != nil || !selector.Matches(labels.Set(w.labels)) {
		return false
	}
	// The Server's port is text: a number, or the name of one of the workload's ports.
	return string(s.Port) == strconv.Itoa(int(port)) || slices.Contains(w.ports, namedPort{string(s.Port), port})
}

// inbound returns the policy that the Server s configures for a port. Invalid routes are left
// out. If anything else in s is invalid, the policy fails closed: it denies all clients, and
// inbound logs why.
func (l *lookup) inbound(s *resource[server], port uint16) *inbound.Server {
	// Translate to the file's format first. Package controller then checks it as it checks a file.
	translated := l.serverObject(s, port)
	for _, f := range routeFields {
		var routes []object
		for _, kind := range f.kinds {
			for _, r := range list[resource[route]](l.cluster, kind, byParent, "Server/"+s.GetNamespace()+"/"+s.GetName()) {
				// Routes may refer to Servers in other namespaces, but only apply in their own.
				if r.GetNamespace() != s.GetNamespace() {
					continue
				}
				route, err := l.inboundRoute(s, r)
				// An invalid route must not make the whole Server invalid, so each is checked alone.
				if err == nil {
					err = l.checkInbound(s, f.field, route)
				}
				if err == nil {
					routes = append(routes, route)
				}
			}
		}
		if len(routes) > 0 {
			translated[f.field] = routes
		}
	}
	authorizations := l.authorizations(s.GetNamespace(), policyGroup, "Server", s.GetName())
	// The first policies elements come from AuthorizationPolicies, and the rest from ServerAuthorizations.
	policies := len(authorizations)
	authorizations = append(authorizations, l.serverAuthorizations(s)...)
	if len(authorizations) > 0 {
		translated["authorizationPolicies"] = authorizations
	}
	if limit := l.rateLimit(s); limit != nil {
		translated["httpLocalRateLimit"] = limit
	}
	policy, err := controller.InboundPolicy(translated, l.settings.ClusterNetworks)
	if err != nil {
		// Fail closed: a mistake must not permit more clients than intended.
		l.log.Warn("invalid Server denies all clients", "namespace", s.GetNamespace(), "name", s.GetName(), "err", err)
		return controller.DefaultServer(controller.Deny, nil, s.spec.ProxyProtocol == "opaque")
	}
	setMetadata(policy)
	for i := range len(authorizations) - policies { // the file format knows only AuthorizationPolicies, so fix the kind here
		a := policy.GetAuthorizations()[policies+i]
		a.Labels["kind"] = "serverauthorization"
		a.GetMetadata().GetResource().Kind = a.GetLabels()["kind"]
	}
	return policy
}

// serverObject starts the translation of s to the configuration file's format with its protocol
// and access policy. The caller adds routes, authorization policies and rate limits.
func (l *lookup) serverObject(s *resource[server], port uint16) object {
	translated := object{"name": s.GetName(), "port": port}
	if p := s.spec.ProxyProtocol; p != "" {
		translated["proxyProtocol"] = p
	}
	if a := s.spec.AccessPolicy; a != "" {
		translated["accessPolicy"] = a
	}
	return translated
}

// inboundRoute translates the Server's route r, including its authorization policies.
func (l *lookup) inboundRoute(s *resource[server], r *resource[route]) (object, error) {
	// Inbound rules have nothing besides matches and filters.
	translated, err := translateRoute(r, func(rule) (object, error) { return make(object), nil })
	if err != nil {
		return nil, err
	}
	if a := l.authorizations(s.GetNamespace(), r.GroupVersionKind().Group, r.GetKind(), r.GetName()); len(a) > 0 {
		translated["authorizationPolicies"] = a
	}
	return translated, nil
}

// checkInbound returns an error if route, which has been translated, is invalid in the Server s.
// field is where the configuration file lists such routes, for example "httpRoutes".
func (l *lookup) checkInbound(s *resource[server], field string, route object) error {
	// The port does not matter for the check.
	candidate := l.serverObject(s, 1)
	candidate[field] = []object{route}
	_, err := controller.InboundPolicy(candidate, nil)
	// Errors should name the route's own fields, because the user sees them in its status.
	return inResource(err, field)
}

// authorizations translates the AuthorizationPolicies that target the given object. A Server is
// also covered by policies that target its namespace. A policy with an invalid reference is left
// out, so it permits no client.
func (l *lookup) authorizations(namespace, group, kind, name string) (all []object) {
	for _, a := range list[resource[authorizationPolicy]](l.cluster, "AuthorizationPolicy", cache.NamespaceIndex, namespace) {
		if a.spec == nil {
			continue
		}
		// The reference has no default group or kind, so both come from the object.
		target, targetName := a.spec.TargetRef.Object(namespace, "", "") // no default kind
		isTarget := *target.Group == group && target.Kind == kind && targetName.Name == name
		isNamespace := kind == "Server" && *target.Group == "" && target.Kind == "Namespace" && targetName.Name == namespace
		if !isTarget && !isNamespace {
			continue
		}
		if translated, ok := l.authorization(a); ok {
			all = append(all, translated)
		}
	}
	return all
}

// authorization translates one AuthorizationPolicy. It returns false if a reference is invalid,
// if the policy requires two identities or two NetworkAuthentications at once, or if the result
// is not valid in a configuration file.
func (l *lookup) authorization(a *resource[authorizationPolicy]) (object, bool) {
	translated := object{"name": a.GetName()}
	var identities []string
	var networks []object
	for _, ref := range a.spec.Required {
		kind, name := ref.Object(a.GetNamespace(), "", "") // no default kind
		found := false
		// identities or networks that are set already mean a second reference of the same type, which no case
		// matches.
		switch {
		case *kind.Group == "" && kind.Kind == "ServiceAccount" && identities == nil:
			identities = []string{l.identity(name.Name, name.Namespace)}
			found = true
		case *kind.Group == policyGroup && kind.Kind == "MeshTLSAuthentication" && identities == nil:
			identities = l.identities(name)
			found = identities != nil
		case *kind.Group == policyGroup && kind.Kind == "NetworkAuthentication" && networks == nil:
			networks = l.networks(name)
			found = networks != nil
		}
		if !found {
			l.ignored("AuthorizationPolicy", a, fmt.Errorf("%s %v does not exist, or excludes an earlier reference", kind.Kind, name))
			return nil, false
		}
	}
	if identities != nil {
		translated["identities"] = identities
	}
	if networks != nil {
		translated["networks"] = networks
	}
	// Networks alone permit all clients in them.
	if identities == nil {
		translated["unauthenticated"] = true
	}
	return translated, l.isValid("AuthorizationPolicy", a, permitting(translated))
}

// identities returns the identities that a MeshTLSAuthentication permits: names, "*.suffix", or
// "*" for all. It returns nil if the object does not exist or lists none.
func (l *lookup) identities(name kubeobject.Name) []string {
	// Authentications count as a namespace's policies, even if they do not exist yet.
	l.use(usesPolicy, name.Namespace, "")
	m := get[resource[meshTLSAuthentication]](l.cluster, "MeshTLSAuthentication", name.Namespace, name.Name)
	if m == nil || m.spec == nil {
		return nil
	}
	all := slices.Clone(m.spec.Identities)
	for _, ref := range m.spec.IdentityRefs {
		kind, refName := ref.Object(m.GetNamespace(), "", "") // no default kind
		switch {
		case *kind.Group == "" && kind.Kind == "ServiceAccount":
			all = append(all, l.identity(refName.Name, refName.Namespace))
		case *kind.Group == "" && kind.Kind == "Namespace":
			all = append(all, l.identity("*", refName.Name)) // all accounts in the namespace
		}
	}
	return all
}

// networks translates a NetworkAuthentication's networks. It returns nil if the object does not
// exist.
func (l *lookup) networks(name kubeobject.Name) []object {
	l.use(usesPolicy, name.Namespace, "")
	n := get[resource[networkAuthentication]](l.cluster, "NetworkAuthentication", name.Namespace, name.Name)
	if n == nil || n.spec == nil {
		return nil
	}
	return translateNetworks(n.spec.Networks)
}

// translateNetworks converts networks to the file's format.
func translateNetworks(networks []network) (all []object) {
	for _, n := range networks {
		translated := object{"cidr": n.CIDR}
		if len(n.Except) > 0 {
			translated["except"] = n.Except
		}
		all = append(all, translated)
	}
	return all
}

// accounts returns the service accounts' identities. A reference without a namespace refers to
// the given one.
func (l *lookup) accounts(refs []kubeobject.Reference, namespace string) (all []string) {
	for _, ref := range refs {
		_, name := ref.Object(namespace, "", "ServiceAccount")
		all = append(all, l.identity(name.Name, name.Namespace))
	}
	return all
}

// serverAuthorizations translates the ServerAuthorizations that select s. Invalid ones are left
// out, so they permit no client.
func (l *lookup) serverAuthorizations(s *resource[server]) (all []object) {
	for _, a := range list[resource[serverAuthorization]](l.cluster, "ServerAuthorization", cache.NamespaceIndex, s.GetNamespace()) {
		if a.spec == nil {
			continue
		}
		// A ServerAuthorization selects Servers by name or by labels.
		selects := a.spec.Server.Name == s.GetName()
		if selector := a.spec.Server.Selector; !selects && selector != nil {
			parsed, err := metav1.LabelSelectorAsSelector(selector)
			selects = err == nil && parsed.Matches(labels.Set(s.GetLabels()))
		}
		if !selects {
			continue
		}
		client := a.spec.Client
		translated := object{"name": a.GetName()}
		if len(client.Networks) > 0 {
			translated["networks"] = translateNetworks(client.Networks)
		}
		// The order matters: Unauthenticated permits all that the other fields would.
		switch mesh := client.MeshTLS; {
		case client.Unauthenticated:
			translated["unauthenticated"] = true
		case mesh != nil && mesh.Unauthenticated:
			translated["unauthenticatedTLS"] = true
		case mesh != nil && len(mesh.Identities)+len(mesh.ServiceAccounts) > 0:
			translated["identities"] = append(l.accounts(mesh.ServiceAccounts, a.GetNamespace()), mesh.Identities...)
		default: // no condition, so it permits no client
			continue
		}
		if l.isValid("ServerAuthorization", a, permitting(translated)) {
			all = append(all, translated)
		}
	}
	return all
}

// rateLimit translates the oldest valid HTTPLocalRateLimitPolicy that targets s. It returns nil
// if there is none.
func (l *lookup) rateLimit(s *resource[server]) object {
	for _, p := range list[resource[rateLimitPolicy]](l.cluster, "HTTPLocalRateLimitPolicy", cache.NamespaceIndex, s.GetNamespace()) {
		if p.spec == nil {
			continue
		}
		kind, name := p.spec.TargetRef.Object(s.GetNamespace(), "", "") // no default kind
		if *kind.Group != policyGroup || kind.Kind != "Server" || name.Name != s.GetName() {
			continue
		}
		translated := object{"name": p.GetName()}
		// Limits are copied as they are. The check below finds mistakes in them.
		for field, limit := range map[string]map[string]any{"total": p.spec.Total, "identity": p.spec.Identity} {
			if limit != nil {
				translated[field] = limit
			}
		}
		overrides := make([]object, 0, len(p.spec.Overrides))
		for _, o := range p.spec.Overrides {
			overrides = append(overrides, object{
				"requestsPerSecond": o.Rate, "identities": l.accounts(o.Clients, p.GetNamespace()),
			})
		}
		if len(overrides) > 0 {
			translated["overrides"] = overrides
		}
		// The limit is checked inside a minimal server, because it is only valid for some protocols.
		limited := l.serverObject(s, 1)
		limited["httpLocalRateLimit"] = translated
		if l.isValid("HTTPLocalRateLimitPolicy", p, limited) {
			return translated
		}
	}
	return nil
}

// permitting returns a minimal server with the authorization policy a, for [lookup.isValid] to
// check.
func permitting(a object) object {
	return object{"name": "check", "port": 1, "authorizationPolicies": []object{a}}
}

// isValid reports whether server, which contains the translation of the Kubernetes object o, is
// valid in a configuration file. If it is not, isValid logs that o has no effect, and why.
func (l *lookup) isValid(kind string, o metav1.Object, server object) bool {
	_, err := controller.InboundPolicy(server, nil)
	if err != nil {
		l.ignored(kind, o, err)
	}
	return err == nil
}

// ignored logs that err makes the Kubernetes object o ineffective.
func (l *lookup) ignored(kind string, o metav1.Object, err error) {
	l.log.Warn("invalid policy has no effect", "kind", kind, "namespace", o.GetNamespace(), "name", o.GetName(), "err", err)
}
