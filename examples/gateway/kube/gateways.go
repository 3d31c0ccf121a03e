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

// listener is a listener in one of this controller's Gateways, with its translation and status.
type listener struct {
	gateway ObjectName
	spec    *Listener
	address string // its address in the configuration: "IP address:port", or ":port" for all addresses

	accepted, conflicted, resolved Condition
	serves                         bool // whether the configuration includes it
	kinds                          []GroupKind
	attached                       int // number of attached routes
}

// port is a listener in the gateway's configuration. A configuration has one listener per
// address, which serves all of the Gateways' and Ingresses' listeners there.
type port struct {
	protocol     string   // HTTP, HTTPS or TCP
	certificates []object // of all its listeners, each once
}

// listener returns p as a listener in the configuration, with the given address.
func (p *port) listener(address string) object {
	l := object{"name": portName(address), "address": address, "protocol": p.protocol}
	if p.protocol == "HTTPS" {
		l["tls"] = object{"certificates": p.certificates}
	}
	return l
}

// portName returns a name for the configuration's listener at an address, such as "port-80" for
// ":80".
func portName(address string) string {
	host, port, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "port-" + port
	}
	return "ip-" + strings.NewReplacer(".", "-", ":", "-").Replace(ip.WithZone("").StringExpanded()) + "-port-" + port
}

// older compares two objects by age, oldest first, and then by namespace and name.
func older(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(nameOf(a).String(), nameOf(b).String()))
}

// gateways translates the Gateways in this controller's GatewayClasses, oldest first, and sets
// the classes' status. A GatewayClass with parametersRef is rejected, and its Gateways are
// ignored.
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

// gateway translates g: it decides which of its listeners the configuration includes, and sets g's
// status.
func (t *translation) gateway(g *Gateway) {
	address, problem := addressOf(g)
	if problem == nil && g.Spec.TLS != nil {
		problem = new(isNot("Accepted", "Invalid", "spec.tls is not supported"))
	}
	listeners := make([]*listener, 0, len(g.Spec.Listeners))
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		listeners = append(listeners, &listener{
			gateway: nameOf(g), spec: l, address: net.JoinHostPort(address, strconv.Itoa(l.Port)),
			accepted: is("Accepted", ""), conflicted: isNot("Conflicted", "NoConflicts", ""), resolved: is("ResolvedRefs", ""),
		})
	}
	for _, l := range listeners {
		t.listener(l, listeners)
		if problem != nil {
			l.serves = false
		}
	}
	for _, l := range listeners { // only now are the conflicts between them known
		if l.serves {
			t.open(l)
		}
	}
	t.listeners = append(t.listeners, listeners...)

	serving := 0
	for _, l := range listeners {
		if l.serves {
			serving++
		}
	}
	accepted := is("Accepted", "")
	programmed := is("Programmed", "")
	switch {
	case problem != nil:
		accepted = *problem
		programmed = isNot("Programmed", "Invalid", problem.Message)
	case serving == 0:
		const message = "no listener is valid"
		accepted = isNot("Accepted", "ListenersNotValid", message)
		programmed = isNot("Programmed", "Invalid", message)
	case serving < len(listeners):
		accepted.Reason = "ListenersNotValid"
		accepted.Message = fmt.Sprintf("%d of %d listeners are valid", serving, len(listeners))
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

// addressOf returns the IP address for g's listeners, or "" for all addresses. If g asks for
// several addresses or something other than an IP address, it returns a failed condition
// Accepted.
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

// addressFrom returns text as an address in a Gateway's status: an IP address or a host name.
func addressFrom(text string) Address {
	if _, err := netip.ParseAddr(text); err != nil {
		return Address{Type: "Hostname", Value: text}
	}
	return Address{Type: "IPAddress", Value: text}
}

// listener decides whether the gateway serves l, and sets its conditions and the kinds of routes
// that it supports. l is not served if it uses something unsupported or conflicts with another
// listener. Listeners at the same address conflict if their protocols differ or their host names
// are equal. Only the same Gateway's listeners, siblings, and those served for older Gateways count.
func (t *translation) listener(l *listener, siblings []*listener) {
	if problem := t.unsupported(l); problem != nil {
		l.accepted = *problem
	}
	l.setKinds()
	certificates := l.spec.Protocol != "HTTPS" || l.accepted.Status != "True" || t.certificates(l)
	for _, o := range slices.Concat(siblings, t.listeners) {
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

// unsupportedValue is the reason why the gateway does not accept a listener or a route that uses
// something unsupported.
const unsupportedValue = "UnsupportedValue"

// unsupported returns a failed condition Accepted if the gateway cannot serve l, and otherwise
// nil.
func (t *translation) unsupported(l *listener) *Condition {
	reason := "UnsupportedProtocol"
	var message string
	switch tls := l.spec.TLS; {
	case l.spec.Protocol != "HTTP" && l.spec.Protocol != "HTTPS" && l.spec.Protocol != "TLS":
		message = "want HTTP, HTTPS or TLS, not " + l.spec.Protocol
	case l.spec.Protocol == "HTTPS" && (tls == nil || tls.Mode != "" && tls.Mode != "Terminate"):
		message = "want tls with the mode Terminate"
	case l.spec.Protocol == "TLS" && (tls == nil || tls.Mode != "Passthrough"):
		reason = unsupportedValue
		message = "want tls with the mode Passthrough; only the protocol HTTPS terminates TLS"
	case tls != nil && tls.FrontendValidation != nil:
		reason = "Invalid"
		message = "tls.frontendValidation is not supported"
	case l.spec.Hostname != "" && !isHostname(l.spec.Hostname):
		reason = "Invalid"
		message = "want a DNS name as the host name"
	case t.unusable.Addresses[l.address] != "":
		reason = "PortUnavailable"
		message = t.unusable.Addresses[l.address]
	default:
		return nil
	}
	return new(isNot("Accepted", reason, message))
}

// setKinds sets l.kinds to the kinds of routes that l allows and the gateway supports. If l
// allows others too, its condition ResolvedRefs becomes False.
func (l *listener) setKinds() {
	var supported []GroupKind
	switch {
	case l.spec.Protocol == "HTTP" || l.spec.Protocol == "HTTPS":
		supported = []GroupKind{{Group: new(gatewayGroup), Kind: "HTTPRoute"}, {Group: new(gatewayGroup), Kind: "GRPCRoute"}}
	case l.spec.Protocol == "TLS" && l.accepted.Reason != unsupportedValue:
		supported = []GroupKind{{Group: new(gatewayGroup), Kind: "TLSRoute"}}
	}
	allowed := l.spec.AllowedRoutes.Kinds
	l.kinds = []GroupKind{} // the API requires a list
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

// certificates reports whether l has a certificate and all of them are valid. If not, it sets l's
// condition ResolvedRefs to False.
func (t *translation) certificates(l *listener) bool {
	refs := l.spec.TLS.CertificateRefs
	valid := len(refs) > 0
	if !valid {
		l.resolved = isNot("ResolvedRefs", "InvalidCertificateRef", "want at least one certificate")
	}
	for _, r := range refs {
		if _, problem := t.certificate(l.gateway.Namespace, r); problem != nil {
			l.resolved = *problem
			valid = false
		}
	}
	return valid
}

// open adds l to the configuration: it makes sure that the configuration has a listener at l's address,
// and adds l's certificates to it. l must be valid and conflict with no other listener. For the protocol
// TLS, that listener has the protocol TCP, because the service terminates TLS.
func (t *translation) open(l *listener) {
	p := t.ports[l.address]
	if p == nil {
		p = &port{protocol: l.spec.Protocol}
		if l.spec.Protocol == "TLS" {
			p.protocol = "TCP"
		}
		t.ports[l.address] = p
	}
	if l.spec.Protocol == "HTTPS" {
		for _, r := range l.spec.TLS.CertificateRefs {
			c, _ := t.certificate(l.gateway.Namespace, r) // t.listener has checked it
			p.add(c)
		}
	}
}

// add adds the certificate c to p, unless it is there already.
func (p *port) add(c object) {
	if !slices.ContainsFunc(p.certificates, func(o object) bool { return o["certificateChain"] == c["certificateChain"] }) {
		p.certificates = append(p.certificates, c)
	}
}

// certificate returns the certificate in the Secret that r, in a Gateway in the given namespace,
// refers to. If it is invalid, certificate returns a failed condition ResolvedRefs.
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

// secret returns the certificate in a Secret as a listener's configuration refers to it, and adds
// its files to t.files. It returns an error unless the Secret contains a certificate with a
// matching key.
func (t *translation) secret(name ObjectName) (object, error) {
	s := t.secrets[name]
	if s == nil {
		return nil, errors.New("want a Secret of type kubernetes.io/tls")
	}
	if _, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"]); err != nil {
		return nil, err
	}
	chain := "secrets/" + name.String() + "/tls.crt"
	key := "secrets/" + name.String() + "/tls.key"
	t.files[chain] = s.Data["tls.crt"]
	t.files[key] = s.Data["tls.key"]
	return object{"certificateChain": chain, "privateKey": key}, nil
}

// allows reports whether routes of this kind in this namespace may attach to l.
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

// listenerStatuses adds each listener's status to its Gateway's. Call it after routes are
// attached, because the status says how many there are.
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
