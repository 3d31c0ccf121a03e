package kube

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// listener is one listener of a Gateway that this controller manages. It has the result of
// its translation to the configuration of the gateway, and its status.
type listener struct {
	gateway ObjectName
	spec    *Listener
	address string // address in the configuration: "IP address:port", or ":port" for all addresses

	accepted, conflicted, resolved Condition
	serves                         bool // whether the listener is part of the configuration
	kinds                          []GroupKind
	attached                       int // number of attached routes
}

// port is one listener in the configuration of the gateway. It serves all listeners of
// Gateways and Ingresses that have its address, because a configuration has one listener
// for each address.
type port struct {
	protocol     string
	certificates []object
}

func (p *port) listener(address string) object {
	l := object{"name": portName(address), "address": address, "protocol": p.protocol}
	if p.protocol == "HTTPS" {
		l["tls"] = object{"certificates": p.certificates}
	}
	return l
}

// portName returns the name of the listener of the configuration with the given address,
// for example "port-80" for ":80".
func portName(address string) string {
	host, port, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "port-" + port
	}
	return "ip-" + strings.NewReplacer(".", "-", ":", "-").Replace(ip.WithZone("").StringExpanded()) + "-port-" + port
}

// older compares two objects by age, and by namespace and name if they have the same age.
// The result is negative if a is older.
func older(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(nameOf(a).String(), nameOf(b).String()))
}

// gateways translates the Gateways of each GatewayClass of this controller. It begins with
// the oldest Gateway. It also sets the status of each of these GatewayClasses. It rejects a
// GatewayClass with parametersRef, and ignores its Gateways.
func (t *translation) gateways() {
	classes := make(map[string]bool)
	for _, c := range t.classes {
		if c.Spec.ControllerName != t.settings.ControllerName {
			continue
		}
		accepted := is("Accepted", "")
		if c.Spec.ParametersRef != nil {
			accepted = isNot("Accepted", "InvalidParameters", "parametersRef is not supported")
		}
		classes[c.Name] = accepted.Status == "True"
		t.statuses = append(t.statuses, Status{Kind: "GatewayClass", Object: nameOf(&c), Conditions: []Condition{accepted}})
	}
	gateways := slices.Clone(t.Objects.gateways)
	slices.SortFunc(gateways, func(a, b Gateway) int { return older(&a, &b) })
	for i := range gateways {
		if classes[gateways[i].Spec.GatewayClassName] {
			t.owned[nameOf(&gateways[i])] = true
			t.gateway(&gateways[i])
		}
	}
}

func (t *translation) gateway(g *Gateway) {
	address, problem := addressOf(g)
	if problem == nil && g.Spec.TLS != nil {
		problem = new(isNot("Accepted", "Invalid", "spec.tls is not supported"))
	}
	own := make([]*listener, 0, len(g.Spec.Listeners))
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		own = append(own, &listener{
			gateway: nameOf(g), spec: l, address: net.JoinHostPort(address, strconv.Itoa(l.Port)),
			accepted: is("Accepted", ""), conflicted: isNot("Conflicted", "NoConflicts", ""), resolved: is("ResolvedRefs", ""),
		})
	}
	for _, l := range own {
		t.listener(l, own)
		if problem != nil {
			l.serves = false
		}
	}
	for _, l := range own { // after conflicts between them were found
		if l.serves {
			t.open(l)
		}
	}
	t.listeners = append(t.listeners, own...)

	serving := 0
	for _, l := range own {
		if l.serves {
			serving++
		}
	}
	accepted, programmed := is("Accepted", ""), is("Programmed", "")
	switch {
	case problem != nil:
		accepted, programmed = *problem, isNot("Programmed", "Invalid", problem.Message)
	case serving == 0:
		const message = "no listener is valid"
		accepted, programmed = isNot("Accepted", "ListenersNotValid", message), isNot("Programmed", "Invalid", message)
	case serving < len(own):
		accepted.Reason, accepted.Message = "ListenersNotValid", fmt.Sprintf("%d of %d listeners are valid", serving, len(own))
	}
	addresses := g.Spec.Addresses
	if len(addresses) == 0 {
		for _, a := range t.settings.Addresses {
			addresses = append(addresses, addressFrom(string(a)))
		}
	}
	t.statuses = append(t.statuses, Status{
		Kind: "Gateway", Object: nameOf(g), Conditions: []Condition{accepted, programmed}, Addresses: addresses,
	})
}

// addressOf returns the IP address at which the listeners of g listen, or "" for all
// addresses. If g has several addresses, or one that is not an IP address, it returns the
// condition Accepted with the status False.
func addressOf(g *Gateway) (string, *Condition) {
	switch a := g.Spec.Addresses; {
	case len(a) == 0:
		return "", nil
	case len(a) > 1 || a[0].Type != "" && a[0].Type != "IPAddress":
		return "", new(isNot("Accepted", "UnsupportedAddress", "want one address of type IPAddress"))
	default:
		ip, err := netip.ParseAddr(a[0].Value)
		if err != nil || ip.Zone() != "" {
			return "", new(isNot("Accepted", "UnsupportedAddress", "want an IP address without a zone"))
		}
		return ip.String(), nil
	}
}

func addressFrom(text string) Address {
	if _, err := netip.ParseAddr(text); err != nil {
		return Address{Type: "Hostname", Value: text}
	}
	return Address{Type: "IPAddress", Value: text}
}

// listener sets l.serves, which reports whether the gateway serves l. It also sets the conditions
// of l and the kinds of routes that l supports. l.serves is false if the gateway cannot serve l,
// or if l conflicts with another listener. Listeners with the same address conflict if their
// protocols differ or their host names are equal. Only the listeners of the same Gateway (the
// argument own) and the served listeners of older Gateways count.
func (t *translation) listener(l *listener, own []*listener) {
	if problem := t.unsupported(l); problem != nil {
		l.accepted = *problem
	}
	l.setKinds()
	certificates := l.spec.Protocol != "HTTPS" || l.accepted.Status != "True" || t.certificates(l)
	for _, o := range slices.Concat(own, t.listeners) {
		reason := ""
		switch older := o.gateway != l.gateway; {
		case o == l || o.address != l.address || older && !o.serves:
		case o.spec.Protocol != l.spec.Protocol:
			reason = "ProtocolConflict"
		case o.spec.Hostname == l.spec.Hostname:
			reason = "HostnameConflict"
		}
		if reason != "" {
			l.conflicted = is("Conflicted", reason)
			l.conflicted.Message = fmt.Sprintf("with listener %s of Gateway %s", o.spec.Name, o.gateway)
		}
	}
	l.serves = l.accepted.Status == "True" && l.conflicted.Status == "False" && certificates && len(l.kinds) > 0
}

// unsupported returns the condition Accepted with the status False if the gateway cannot
// serve l. Otherwise it returns nil.
func (t *translation) unsupported(l *listener) *Condition {
	reason := "UnsupportedProtocol"
	var message string
	switch tls := l.spec.TLS; {
	case l.spec.Protocol != "HTTP" && l.spec.Protocol != "HTTPS":
		message = "want HTTP or HTTPS, not " + l.spec.Protocol
	case l.spec.Protocol == "HTTPS" && (tls == nil || tls.Mode != "" && tls.Mode != "Terminate"):
		message = "want tls with the mode Terminate"
	case tls != nil && tls.FrontendValidation != nil:
		reason, message = "Invalid", "tls.frontendValidation is not supported"
	case l.spec.Hostname != "" && !isHostname(l.spec.Hostname):
		reason, message = "Invalid", "want a DNS name as the host name"
	case t.unusable.Addresses[l.address] != "":
		reason, message = "PortUnavailable", t.unusable.Addresses[l.address]
	default:
		return nil
	}
	return new(isNot("Accepted", reason, message))
}

// setKinds sets l.kinds to the kinds of routes that l allows and the gateway supports. If l
// allows a kind that the gateway does not support, the condition ResolvedRefs of l becomes
// False.
func (l *listener) setKinds() {
	var supported []GroupKind
	if l.accepted.Reason != "UnsupportedProtocol" || l.spec.Protocol == "HTTPS" {
		supported = []GroupKind{{Group: new(gatewayGroup), Kind: "HTTPRoute"}, {Group: new(gatewayGroup), Kind: "GRPCRoute"}}
	}
	allowed := l.spec.AllowedRoutes.Kinds
	l.kinds = []GroupKind{} // required
	for _, k := range supported {
		if len(allowed) == 0 || slices.ContainsFunc(allowed, k.Equal) {
			l.kinds = append(l.kinds, k)
		}
	}
	for _, k := range allowed {
		if !slices.ContainsFunc(supported, k.Equal) {
			l.resolved = isNot("ResolvedRefs", "InvalidRouteKinds", fmt.Sprintf("the kind %s is not supported", k.Kind))
		}
	}
}

// certificates reports whether l has at least one certificate and all of them are valid. If
// not, it sets the condition ResolvedRefs of l to False.
func (t *translation) certificates(l *listener) bool {
	refs := l.spec.TLS.CertificateRefs
	valid := len(refs) > 0
	if !valid {
		l.resolved = isNot("ResolvedRefs", "InvalidCertificateRef", "want at least one certificate")
	}
	for _, r := range refs {
		if _, problem := t.certificate(l.gateway.Namespace, r); problem != nil {
			l.resolved, valid = *problem, false
		}
	}
	return valid
}

// open adds the certificates of l, a listener of a Gateway, to the listener with the same
// address in the configuration. If the configuration has no such listener, open creates
// it.
func (t *translation) open(l *listener) {
	p := t.ports[l.address]
	if p == nil {
		p = &port{protocol: l.spec.Protocol}
		t.ports[l.address] = p
	}
	if l.spec.Protocol == "HTTPS" {
		for _, r := range l.spec.TLS.CertificateRefs {
			c, _ := t.certificate(l.gateway.Namespace, r)
			p.add(c)
		}
	}
}

// add adds the certificate c to p, unless p already has it.
func (p *port) add(c object) {
	if !slices.ContainsFunc(p.certificates, func(o object) bool { return o["certificateChain"] == c["certificateChain"] }) {
		p.certificates = append(p.certificates, c)
	}
}

// certificate returns the certificate in the Secret to which r refers. r belongs to a
// Gateway in the given namespace. If r is invalid, certificate returns the condition
// ResolvedRefs with the reason.
func (t *translation) certificate(namespace string, r ObjectReference) (object, *Condition) {
	kind, name := r.Object(namespace, "", "Secret")
	invalid := func(reason, format string, args ...any) *Condition {
		return new(isNot("ResolvedRefs", reason, fmt.Sprintf(format, args...)))
	}
	if *kind.Group != "" || kind.Kind != "Secret" {
		return nil, invalid("InvalidCertificateRef", "want a Secret, not %s", kind.Kind)
	}
	if !t.permits("Gateway", namespace, "Secret", name) {
		return nil, invalid("RefNotPermitted", "no ReferenceGrant for Secret %s", name)
	}
	c, err := t.secret(name)
	if err != nil {
		return nil, invalid("InvalidCertificateRef", "Secret %s: %v", name, err)
	}
	return c, nil
}

// secret returns the certificate in the Secret with the given name, in the form that the
// configuration of a listener has. It adds the certificate and the private key to t.files.
// It returns an error if the Secret has no valid pair of them.
func (t *translation) secret(name ObjectName) (object, error) {
	s := t.secrets[name]
	if s == nil {
		return nil, errors.New("want a Secret of type kubernetes.io/tls")
	}
	if _, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"]); err != nil {
		return nil, err
	}
	chain, key := "secrets/"+name.String()+"/tls.crt", "secrets/"+name.String()+"/tls.key"
	t.files[chain], t.files[key] = s.Data["tls.crt"], s.Data["tls.key"]
	return object{"certificateChain": chain, "privateKey": key}, nil
}

// allows reports whether routes of the given kind and namespace may attach to l.
func (t *translation) allows(l *listener, kind, namespace string) bool {
	if !slices.ContainsFunc(l.kinds, GroupKind{Kind: kind}.Equal) {
		return false
	}
	switch n := l.spec.AllowedRoutes.Namespaces; n.From {
	case "All":
		return true
	case "Selector":
		selector, err := metav1.LabelSelectorAsSelector(n.Selector)
		return err == nil && selector.Matches(labels.Set(t.namespaces[namespace]))
	case "None":
		return false
	}
	return namespace == l.gateway.Namespace
}

// listenerStatuses adds the status of each listener to the status of its Gateway. It is
// called after the routes are attached, because the status contains the number of attached
// routes.
func (t *translation) listenerStatuses() {
	for i := range t.statuses {
		s := &t.statuses[i]
		for _, l := range t.listeners {
			if s.Kind != "Gateway" || s.Object != l.gateway {
				continue
			}
			programmed := is("Programmed", "")
			if !l.serves {
				programmed = isNot("Programmed", "Invalid", "the listener is not valid")
			}
			s.Listeners = append(s.Listeners, ListenerStatus{
				Name: l.spec.Name, AttachedRoutes: l.attached, SupportedKinds: l.kinds,
				Conditions: []Condition{l.accepted, l.conflicted, l.resolved, programmed},
			})
		}
	}
}
