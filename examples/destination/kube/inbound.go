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

// Server is part of [controller.Source]. The argument workload identifies a pod by the JSON
// text that linkerd's injector sets, such as {"ns":"default","pod":"web-1"}. For a pod that
// does not exist, Server returns the default policy of the settings.
func (c *cluster) Server(workload string, port uint16) (*inbound.Server, []controller.Object) {
	l := c.look()
	var w struct {
		NS  string `json:"ns"`
		Pod string `json:"pod"`
	}
	if err := json.Unmarshal([]byte(workload), &w); err != nil {
		w.NS, w.Pod, _ = strings.Cut(workload, ":") // of old proxies
	}
	l.use(usesPod, w.NS, w.Pod)
	p := get[pod](c, "Pod", w.NS, w.Pod)
	if p == nil {
		return controller.DefaultServer(c.settings.DefaultInbound, c.settings.ClusterNetworks, c.opaque.has(port)), l.uses()
	}
	if s := l.serverOf(p, port); s != nil {
		return l.inbound(s, port), l.uses()
	}
	return controller.DefaultServer(c.access(p), c.settings.ClusterNetworks, c.ports(p.Annotations).has(port)), l.uses()
}

// access returns the access policy of the ports of p that have no Server. It is the value
// of the annotation default-inbound-policy of p. If the annotation is missing or invalid,
// it is DefaultInbound of the settings.
func (c *cluster) access(p *pod) controller.AccessPolicy {
	if access := p.Annotations[defaultInbound]; slices.Contains(controller.AccessPolicies(), access) {
		return controller.AccessPolicy(access)
	}
	return c.settings.DefaultInbound
}

// serverOf returns the Server of a port of p, or nil. If several Servers select the port,
// it returns the oldest.
func (l *lookup) serverOf(p *pod, port uint16) *resource[server] {
	l.use(usesPolicy, p.Namespace, "")
	for _, s := range list[resource[server]](l.cluster, "Server", cache.NamespaceIndex, p.Namespace) {
		if s.spec == nil || s.spec.PodSelector == nil { // it selects external workloads
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(s.spec.PodSelector)
		if err == nil && selector.Matches(labels.Set(p.Labels)) && s.spec.selects(p, port) {
			return s
		}
	}
	return nil
}

// selects reports whether s selects the given port of p. The field Port of s is a number,
// or the name of a port of a container.
func (s *server) selects(p *pod, port uint16) bool {
	if string(s.Port) == strconv.Itoa(int(port)) {
		return true
	}
	return slices.Contains(p.ports, namedPort{string(s.Port), port})
}

// inbound returns the policy of the Server s for the given port. It leaves out invalid
// routes. If another part of s is invalid, the policy denies all clients, and inbound logs
// the reason.
func (l *lookup) inbound(s *resource[server], port uint16) *inbound.Server {
	to := l.serverObject(s, port)
	for _, f := range policyFields {
		var routes []object
		for _, r := range list[resource[route]](l.cluster, f.kind, byParent, "Server/"+s.GetNamespace()+"/"+s.GetName()) {
			if r.GetNamespace() != s.GetNamespace() {
				continue
			}
			route, err := l.inboundRoute(s, r)
			if err == nil {
				err = l.checkInbound(s, f.field, route)
			}
			if err == nil {
				routes = append(routes, route)
			}
		}
		if len(routes) > 0 {
			to[f.field] = routes
		}
	}
	authorizations := l.authorizations(s.GetNamespace(), policyGroup, "Server", s.GetName())
	policies := len(authorizations)
	authorizations = append(authorizations, l.serverAuthorizations(s)...)
	if len(authorizations) > 0 {
		to["authorizationPolicies"] = authorizations
	}
	if limit := l.rateLimit(s); limit != nil {
		to["httpLocalRateLimit"] = limit
	}
	file := object{"destinations": object{}, "servers": []object{to}}
	if n := l.settings.ClusterNetworks; len(n) > 0 {
		file["clusterNetworks"] = n
	}
	cfg, err := parse(file)
	if err != nil {
		l.log.Warn("invalid Server denies all clients", "namespace", s.GetNamespace(), "name", s.GetName(), "err", err)
		return controller.DefaultServer(controller.Deny, nil, s.spec.ProxyProtocol == "opaque")
	}
	policy := cfg.Servers[0].Policy
	for i := range len(authorizations) - policies { // the file has only AuthorizationPolicies
		a := policy.GetAuthorizations()[policies+i]
		a.Labels["kind"] = "serverauthorization"
		a.GetMetadata().GetResource().Kind = a.GetLabels()["kind"]
	}
	return policy
}

// serverObject translates the Server s to an object of the configuration file, for the given
// port. The object has the protocol and the access policy of s, but not its routes,
// authorization policies and rate limit.
func (l *lookup) serverObject(s *resource[server], port uint16) object {
	to := object{"name": s.GetName(), "port": port}
	if p := s.spec.ProxyProtocol; p != "" {
		to["proxyProtocol"] = p
	}
	if a := s.spec.AccessPolicy; a != "" {
		to["accessPolicy"] = a
	}
	return to
}

// inboundRoute translates the route r of the Server s, with its authorization policies.
func (l *lookup) inboundRoute(s *resource[server], r *resource[route]) (object, error) {
	to, err := translateRoute(r, func(rule) (object, error) { return make(object), nil })
	if err != nil {
		return nil, err
	}
	if a := l.authorizations(s.GetNamespace(), gatewayGroup, r.GetKind(), r.GetName()); len(a) > 0 {
		to["authorizationPolicies"] = a
	}
	return to, nil
}

// checkInbound returns an error if route, a translated route, is not valid as a route of
// the Server s. The argument field is the field of the configuration file for this kind of
// route, such as "httpRoutes".
func (l *lookup) checkInbound(s *resource[server], field string, route object) error {
	to := l.serverObject(s, 1)
	to[field] = []object{route}
	_, err := parse(object{"destinations": object{}, "servers": []object{to}})
	return err
}

// authorizations translates the AuthorizationPolicies that have the given object as their
// target. If the object is a Server, policies with its namespace as their target apply too.
// A policy with an invalid reference is left out, and therefore permits no client.
func (l *lookup) authorizations(namespace, group, kind, name string) (all []object) {
	for _, a := range list[resource[authorizationPolicy]](l.cluster, "AuthorizationPolicy", cache.NamespaceIndex, namespace) {
		if a.spec == nil {
			continue
		}
		target, of := a.spec.TargetRef.Object(namespace, "", "")
		isTarget := *target.Group == group && target.Kind == kind && of.Name == name
		isNamespace := kind == "Server" && *target.Group == "" && target.Kind == "Namespace" && of.Name == namespace
		if !isTarget && !isNamespace {
			continue
		}
		if to, ok := l.authorization(a); ok {
			all = append(all, to)
		}
	}
	return all
}

// authorization translates one AuthorizationPolicy to an object of the configuration file. It
// returns false if a reference in the policy is invalid, if the policy requires two identities
// or two NetworkAuthentications, or if the resulting object is not valid in this file.
func (l *lookup) authorization(a *resource[authorizationPolicy]) (object, bool) {
	to := object{"name": a.GetName()}
	var identities []string
	var networks []object
	for _, ref := range a.spec.Required {
		kind, name := ref.Object(a.GetNamespace(), "", "")
		found := false
		switch {
		case *kind.Group == "" && kind.Kind == "ServiceAccount" && identities == nil:
			identities, found = []string{l.identity(name.Name, name.Namespace)}, true
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
		to["identities"] = identities
	}
	if networks != nil {
		to["networks"] = networks
	}
	if identities == nil {
		to["unauthenticated"] = true
	}
	return to, l.isValid("AuthorizationPolicy", a, permitting(to))
}

// identities returns the identities that a MeshTLSAuthentication permits. Each one is a
// name, "*" for all identities, or "*.suffix". It returns nil if the object does not exist.
func (l *lookup) identities(name kubeobject.Name) []string {
	l.use(usesPolicy, name.Namespace, "")
	m := get[resource[meshTLSAuthentication]](l.cluster, "MeshTLSAuthentication", name.Namespace, name.Name)
	if m == nil || m.spec == nil {
		return nil
	}
	all := slices.Clone(m.spec.Identities)
	for _, ref := range m.spec.IdentityRefs {
		kind, name := ref.Object(m.GetNamespace(), "", "")
		switch {
		case *kind.Group == "" && kind.Kind == "ServiceAccount":
			all = append(all, l.identity(name.Name, name.Namespace))
		case *kind.Group == "" && kind.Kind == "Namespace":
			all = append(all, l.identity("*", name.Name))
		}
	}
	return all
}

// networks translates the networks of a NetworkAuthentication. It returns nil if the object
// does not exist.
func (l *lookup) networks(name kubeobject.Name) []object {
	l.use(usesPolicy, name.Namespace, "")
	n := get[resource[networkAuthentication]](l.cluster, "NetworkAuthentication", name.Namespace, name.Name)
	if n == nil || n.spec == nil {
		return nil
	}
	return translateNetworks(n.spec.Networks)
}

func translateNetworks(from []network) (all []object) {
	for _, n := range from {
		to := object{"cidr": n.CIDR}
		if len(n.Except) > 0 {
			to["except"] = n.Except
		}
		all = append(all, to)
	}
	return all
}

// accounts returns the identities of the service accounts in refs. A reference without a
// namespace refers to the given namespace.
func (l *lookup) accounts(refs []kubeobject.Reference, namespace string) (all []string) {
	for _, ref := range refs {
		_, name := ref.Object(namespace, "", "ServiceAccount")
		all = append(all, l.identity(name.Name, name.Namespace))
	}
	return all
}

// serverAuthorizations translates the ServerAuthorizations that select s. An invalid one is
// left out, and therefore permits no client.
func (l *lookup) serverAuthorizations(s *resource[server]) (all []object) {
	for _, a := range list[resource[serverAuthorization]](l.cluster, "ServerAuthorization", cache.NamespaceIndex, s.GetNamespace()) {
		if a.spec == nil {
			continue
		}
		selects := a.spec.Server.Name == s.GetName()
		if selector := a.spec.Server.Selector; !selects && selector != nil {
			parsed, err := metav1.LabelSelectorAsSelector(selector)
			selects = err == nil && parsed.Matches(labels.Set(s.GetLabels()))
		}
		if !selects {
			continue
		}
		client, to := a.spec.Client, object{"name": a.GetName()}
		if len(client.Networks) > 0 {
			to["networks"] = translateNetworks(client.Networks)
		}
		switch mesh := client.MeshTLS; {
		case client.Unauthenticated:
			to["unauthenticated"] = true
		case mesh != nil && mesh.Unauthenticated:
			to["unauthenticatedTLS"] = true
		case mesh != nil && len(mesh.Identities)+len(mesh.ServiceAccounts) > 0:
			to["identities"] = append(l.accounts(mesh.ServiceAccounts, a.GetNamespace()), mesh.Identities...)
		default: // it permits no client
			continue
		}
		if l.isValid("ServerAuthorization", a, permitting(to)) {
			all = append(all, to)
		}
	}
	return all
}

// rateLimit translates the oldest valid HTTPLocalRateLimitPolicy that has s as its target.
// It returns nil if s has no valid policy.
func (l *lookup) rateLimit(s *resource[server]) object {
	for _, p := range list[resource[rateLimitPolicy]](l.cluster, "HTTPLocalRateLimitPolicy", cache.NamespaceIndex, s.GetNamespace()) {
		if p.spec == nil {
			continue
		}
		kind, name := p.spec.TargetRef.Object(s.GetNamespace(), "", "")
		if *kind.Group != policyGroup || kind.Kind != "Server" || name.Name != s.GetName() {
			continue
		}
		to := object{"name": p.GetName()}
		for field, limit := range map[string]map[string]any{"total": p.spec.Total, "identity": p.spec.Identity} {
			if limit != nil {
				to[field] = limit
			}
		}
		overrides := make([]object, 0, len(p.spec.Overrides))
		for _, o := range p.spec.Overrides {
			overrides = append(overrides, object{
				"requestsPerSecond": o.Rate, "identities": l.accounts(o.Clients, p.GetNamespace()),
			})
		}
		if len(overrides) > 0 {
			to["overrides"] = overrides
		}
		limited := l.serverObject(s, 1)
		limited["httpLocalRateLimit"] = to
		if l.isValid("HTTPLocalRateLimitPolicy", p, limited) {
			return to
		}
	}
	return nil
}

// permitting returns a server in the format of the configuration file, with a as its only
// authorization policy. [lookup.isValid] parses this server to check whether a is valid.
func permitting(a object) object {
	return object{"name": "check", "port": 1, "authorizationPolicies": []object{a}}
}

// isValid parses server, an object in the format of the configuration file, and reports whether
// this server is valid. The server contains the translation of o, a Kubernetes object of the
// given kind. If server is invalid, isValid also logs that o has no effect, and the reason.
func (l *lookup) isValid(kind string, o metav1.Object, server object) bool {
	_, err := parse(object{"destinations": object{}, "servers": []object{server}})
	if err != nil {
		l.ignored(kind, o, err)
	}
	return err == nil
}

// ignored logs that o, a Kubernetes object of the given kind, has no effect because of err.
func (l *lookup) ignored(kind string, o metav1.Object, err error) {
	l.log.Warn("invalid policy has no effect", "kind", kind, "namespace", o.GetNamespace(), "name", o.GetName(), "err", err)
}
