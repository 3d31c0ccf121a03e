package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
)

// ingresses translates the Ingresses in this controller's IngressClasses, oldest first. Their
// routes belong to the listeners at the settings' IngressHTTP and IngressHTTPS, which Gateways
// may use too.
func (t *translation) ingresses() {
	classes := make(map[string]bool)
	for _, c := range t.ingressClasses {
		if c.Spec.Controller == t.settings.ControllerName {
			classes[c.Name] = true
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				classes[""] = true
			}
		}
	}
	ingresses := slices.Clone(t.Objects.ingresses)
	slices.SortFunc(ingresses, func(a, b networkingv1.Ingress) int { return older(&a, &b) })
	for i := range ingresses {
		if classes[or(ingresses[i].Spec.IngressClassName, "")] {
			t.ingress(&ingresses[i])
		}
	}
}

func (t *translation) ingress(in *networkingv1.Ingress) {
	ports := []string{t.ingressPort(string(t.settings.IngressHTTP), "HTTP", nil)}
	for _, s := range in.Spec.TLS {
		if c, err := t.secret(ObjectName{Namespace: in.Namespace, Name: s.SecretName}); err == nil {
			ports = append(ports[:1], t.ingressPort(string(t.settings.IngressHTTPS), "HTTPS", c))
		}
	}
	ports = slices.DeleteFunc(ports, func(name string) bool { return name == "" })
	number := 0
	add := func(host, path string, pathType networkingv1.PathType, b networkingv1.IngressBackend) {
		of := ruleName{"Ingress", nameOf(in), number}
		number++
		if t.unusable.rules[of] != "" || len(ports) == 0 {
			return
		}
		m := RouteMatch{Path: &ValueMatch{Value: new(cmp.Or(path, "/"))}}
		if pathType == networkingv1.PathTypeExact {
			m.Path.Type = "Exact"
		}
		match, rank := httpMatch(m)
		if pathType == "" {
			rank.path = 0 // the default backend comes last
		}
		rank.created = in.CreationTimestamp.Unix()
		rank.name = nameOf(in).String()
		rank.rule = of.rule
		t.add(of, rank, object{
			"name":        fmt.Sprintf("ingress.%s.%s.%d", in.Namespace, in.Name, of.rule),
			"matches":     []object{match},
			"backendRefs": []object{{"name": t.ingressBackend(in.Namespace, b)}},
		}, map[attachment][]string{{host: host}: ports})
	}
	for _, rule := range in.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			add(rule.Host, p.Path, or(p.PathType, networkingv1.PathTypePrefix), p.Backend)
		}
	}
	if b := in.Spec.DefaultBackend; b != nil {
		add("", "/", "", *b)
	}
	status := Status{Kind: "Ingress", Object: nameOf(in), LoadBalancer: &LoadBalancer{}}
	for _, a := range t.settings.Addresses {
		address := IngressAddress{Hostname: string(a)}
		if _, err := netip.ParseAddr(string(a)); err == nil {
			address = IngressAddress{IP: string(a)}
		}
		status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress, address)
	}
	t.statuses = append(t.statuses, status)
}

// ingressPort returns the name of the configuration's listener at an address, after creating it
// if needed and adding certificate unless it is nil. It returns "" if the address cannot be used,
// or if a Gateway uses it for another protocol.
func (t *translation) ingressPort(address, protocol string, certificate object) string {
	if t.unusable.Addresses[address] != "" {
		return ""
	}
	p := t.ports[address]
	if p == nil {
		p = &port{protocol: protocol}
		t.ports[address] = p
	}
	if p.protocol != protocol {
		return ""
	}
	if certificate != nil {
		p.add(certificate)
	}
	return portName(address)
}

func (t *translation) ingressBackend(namespace string, b networkingv1.IngressBackend) string {
	if b.Service == nil {
		return t.invalid()
	}
	port := cmp.Or(b.Service.Port.Name, strconv.Itoa(int(b.Service.Port.Number)))
	name, ok := t.service(ObjectName{Namespace: namespace, Name: b.Service.Name}, port)
	if !ok {
		return t.invalid()
	}
	return name
}
