package k8s

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/resolve"
)

// target is a parsed target: a Service, and one of its ports.
type target struct {
	object
	port portRef
}

// object is a Service's name. All streams of a Service share its watches.
type object struct{ namespace, name string }

// String returns the Service as in a target, "name.namespace", for errors.
func (o object) String() string { return o.name + "." + o.namespace }

// portRef is the port in a target: a number, or a name if number is 0.
type portRef struct {
	number uint16
	name   string
}

// String returns the number, or the name in quotes, for errors.
func (p portRef) String() string {
	if p.number != 0 {
		return strconv.Itoa(int(p.number))
	}
	return strconv.Quote(p.name)
}

// parseTarget parses s, which must have one of the forms in the package documentation. Its error
// matches resolve.ErrUnresolvable. namespace and domain come from the options.
func parseTarget(s, namespace, domain string) (target, error) {
	t, err := parse(s, namespace, domain)
	if err != nil {
		return target{}, fmt.Errorf("k8s: target %q: %w: %w", s, resolve.ErrUnresolvable, err)
	}
	return t, nil
}

// parse is parseTarget, but its errors do not contain s and do not match resolve.ErrUnresolvable.
func parse(s, namespace, domain string) (t target, err error) {
	host, port, withPort := authority.CutPort(s)
	// Brackets and colons that are left in the host are those of an IPv6 address.
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || strings.ContainsAny(host, ":[]") {
		return t, errors.New("an IP address is not the name of a Service; write name.namespace:80")
	}
	if !withPort {
		return t, errors.New("missing port: add the number of a Service's port, as in :80, or its name, as in :http")
	}
	if t.object, err = parseHost(strings.ToLower(host), namespace, domain); err != nil {
		return t, err
	}
	// Checked here rather than at the API server, which would answer that the Service does not exist.
	for _, segment := range []struct{ kind, label string }{
		{"name of the Service", t.name}, {"namespace", t.namespace},
	} {
		if reason := notLabel(segment.label); reason != "" {
			return t, fmt.Errorf("the %s %q %s", segment.kind, segment.label, reason)
		}
	}
	t.port, err = parsePort(strings.ToLower(port))
	return t, err
}

// parseHost splits a host into a Service's name and namespace. It does not check whether name and
// namespace are valid.
func parseHost(host, namespace, domain string) (object, error) {
	// A dot at the end marks a name that is complete.
	short, rooted := strings.CutSuffix(host, ".")
	// short is what precedes the cluster's domain, and whole tells whether that domain was given.
	short, whole := strings.CutSuffix(short, ".svc."+domain)
	if rooted && !whole {
		return object{}, fmt.Errorf("a dot at the end is for a whole name, as name.namespace.svc.%s. is", domain)
	}
	labels := strings.Split(short, ".")
	// The order of the labels is name, namespace and "svc". Without a domain, "svc" may end the name or be missing.
	switch n := len(labels); {
	case n == 3 && labels[2] == "svc" && !whole:
		return object{name: labels[0], namespace: labels[1]}, nil
	case n == 2:
		return object{name: labels[0], namespace: labels[1]}, nil
	case n == 1 && !whole && namespace == "":
		return object{}, errors.New("missing namespace: write name.namespace, or use WithNamespace")
	case n == 1 && !whole:
		return object{name: labels[0], namespace: namespace}, nil
	}
	return object{}, fmt.Errorf("not the name of a Service: write name.namespace or name.namespace.svc.%s; "+
		"for another domain of the cluster, set the option WithClusterDomain", domain)
}

// parsePort parses a port. A text of digits is always a number.
func parsePort(s string) (portRef, error) {
	// Only digits: a port's name in Kubernetes has at least one letter, so the two cannot be confused.
	if s != "" && strings.Trim(s, "0123456789") == "" {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return portRef{}, fmt.Errorf("the port %s is not from 1 to 65535", s)
		}
		return portRef{number: uint16(n)}, nil
	}
	if reason := notLabel(s); reason != "" {
		return portRef{}, fmt.Errorf("the port %q is neither a number nor a name: as a name it %s", s, reason)
	}
	return portRef{name: s}, nil
}

// notLabel returns the reason why s is not a DNS label in lower case (RFC 1123, section
// 2.1). It returns "" if s is a label.
func notLabel(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > 63:
		return fmt.Sprintf("has %d characters; 63 are the most", len(s))
	case s[0] == '-' || s[len(s)-1] == '-':
		return "begins or ends with a hyphen"
	}
	// Bytes, because every character that is allowed is one byte.
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Sprintf("has the character %q; there may be a-z, 0-9 and -", c)
		}
	}
	return ""
}
