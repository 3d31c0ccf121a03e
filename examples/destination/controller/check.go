package controller

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"

	"github.com/gotower/gotower/examples/destination/internal/rustregexp"
	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
)

// validate adds each mistake in the destinations of cfg to v.Mistakes, so that all of them are reported at once. v
// is the configuration's root.
func validate(v yamlfile.Value, cfg Config) {
	// Two spellings of a name, such as a.b and a.b:80, are the same target.
	first := make(map[target]string)
	for _, name := range slices.Sorted(maps.Keys(cfg.Destinations)) {
		item := v.At("destinations").At(name)
		t, err := parseTarget(name)
		// Without a target, the rest cannot be checked.
		if err != nil {
			item.Failf("%v", err)
			continue
		}
		if earlier, repeated := first[t]; repeated {
			item.Failf("the same destination as %q, in another spelling: take one out", earlier)
		}
		first[t] = name
		cfg.Destinations[name].validate(item, t)
	}
}

// validate adds mistakes in d to v.Mistakes. d is at v in the configuration and describes the target t.
func (d Destination) validate(v yamlfile.Value, t target) {
	// Get never returns anything for such destinations, so their fields would silently have no effect.
	switch {
	case d.Absent && (len(d.Endpoints) > 0 || len(d.Labels) > 0 || d.Profile != nil || d.Policy != nil):
		v.Failf("the destination does not exist: want no labels, endpoints, profile and policy")
	case t.ip && (d.Absent || len(d.Endpoints) > 0 || len(d.Labels) > 0):
		v.Failf("an IP address is not resolved: want only a profile and a policy")
	}
	checkLabels(v.At("labels"), d.Labels)
	first := make(map[netip.AddrPort]int)
	for i, ep := range d.Endpoints {
		item := v.At("endpoints").Item(i)
		ep.validate(item)
		// A missing address is already reported by ep.validate.
		if earlier, repeated := first[unmap(ep.Addr)]; repeated && ep.Addr.IsValid() {
			item.At("addr").Rejectf(ep.Addr, "the address of endpoints[%d]: take one out", earlier)
		}
		first[unmap(ep.Addr)] = i
	}
	if p := d.Profile; p != nil {
		p.validate(v.At("profile"))
		if p.Endpoint != nil && (!t.ip || p.Name != "") {
			v.At("profile").At("endpoint").Failf("clients ignore it, because the destination has a name: take it out")
		}
	}
}

// validate adds mistakes in ep, which is at v, to v.Mistakes.
func (ep Endpoint) validate(v yamlfile.Value) {
	// Only the first of these mistakes is reported, because the others follow from it.
	switch addr := ep.Addr.Addr(); {
	case !ep.Addr.IsValid():
		v.At("addr").Failf("missing: addr is required")
	case addr.Zone() != "":
		v.At("addr").Rejectf(ep.Addr, "want an address without a zone")
	case addr.Unmap().IsUnspecified():
		v.At("addr").Rejectf(ep.Addr, "want an address to which clients can connect")
	case ep.Addr.Port() == 0:
		v.At("addr").Rejectf(ep.Addr, "want a port from 1 to 65535")
	}
	if p := ep.Protocol; p != Unknown && p != H2 && p != Opaque {
		v.At("protocol").Rejectf(p, "want one of h2, opaque")
	}
	check(v.At("identity"), ep.Identity, checkIdentity(ep.Identity))
	// A URI cannot be a TLS server name, which is otherwise the identity.
	switch name := ep.ServerName; {
	case name == "" && isURI(ep.Identity):
		v.At("server_name").Failf("missing: an identity that is a URI requires it")
	case name != "" && ep.Identity == "":
		v.At("server_name").Rejectf(name, "it requires an identity")
	case name != "":
		check(v.At("server_name"), name, checkName(name))
	}
	check(v.At("authority"), ep.Authority, checkAuthority(ep.Authority))
	// Only TLS connections can go to the port of the endpoint's proxy.
	switch port := ep.InboundPort; {
	case port != 0 && ep.Identity == "":
		v.At("opaque_port").Rejectf(port, "it requires an identity")
	case port == math.MaxUint16:
		v.At("opaque_port").Rejectf(port, "want a port from 1 to %d", math.MaxUint16-1)
	}
	checkLabels(v.At("labels"), ep.Labels)
}

// Validate returns an error that joins an [*Error] for each mistake in p, or nil.
func (p *Profile) Validate() error {
	v := yamlfile.Program(nil)
	p.validate(v)
	return yamlfile.Join(v.Mistakes)
}

// validate adds the mistakes in p, which is at v.
func (p *Profile) validate(v yamlfile.Value) {
	if p.Name != "" {
		// Without a name, the profile uses that of the destination, which is valid.
		check(v.At("name"), p.Name, checkName(p.Name))
	}
	if p.Endpoint != nil {
		p.Endpoint.validate(v.At("endpoint"))
	}
	for i, r := range p.Routes {
		r.validate(v.At("routes").Item(i))
	}
	for i, s := range p.Splits {
		check(v.At("splits").Item(i).At("authority"), s.Authority, checkSplit(s.Authority))
	}
	if b := p.Budget; b != nil {
		// These limits are those of package profiles' retry budget, which clients use.
		v := v.At("retry_budget")
		if math.IsNaN(b.Ratio) || b.Ratio < 0 || b.Ratio > 1000 {
			v.At("ratio").Rejectf(b.Ratio, "want a number from 0 to 1000")
		}
		if b.MinPerSecond > math.MaxInt32 {
			v.At("min_per_second").Rejectf(b.MinPerSecond, "want a whole number from 0 to %d", math.MaxInt32)
		}
		if b.TTL < time.Second || b.TTL > time.Minute {
			v.At("ttl").Rejectf(b.TTL, "want a duration from 1s to 1m")
		}
	}
}

// validate adds mistakes in r, which is at v, to v.Mistakes.
func (r Route) validate(v yamlfile.Value) {
	if r.Name == "" {
		v.At("name").Failf("missing: name is required")
	}
	checkLabels(v.At("labels"), r.Labels)
	// routeMessage sets this label to the name of the route.
	if value, taken := r.Labels[routeLabel]; taken {
		v.At("labels").At(routeLabel).Rejectf(value, "this label is the name of the route: take it out")
	}
	r.Match.validate(v.At("match"))
	if r.Timeout < 0 {
		v.At("timeout").Rejectf(r.Timeout, "want a duration of more than 0")
	}
	if r.RetryNonIdempotent && !r.Retryable {
		v.At("retry_non_idempotent").Rejectf(true, "it requires retryable: true")
	}
	for i, c := range r.Classes {
		if c.Min < 100 || c.Max > 999 || c.Min > c.Max { // clients would drop a class that sets only one limit
			v.At("response_classes").Item(i).At("status").Rejectf(fmt.Sprintf("%d-%d", c.Min, c.Max), "want a range within 100-999")
		}
	}
}

// validate adds mistakes in m and in its nested conditions to v.Mistakes. m is at v.
func (m Match) validate(v yamlfile.Value) {
	if m.Method == "" && m.Path == "" && len(m.All) == 0 && len(m.Any) == 0 && m.Not == nil {
		// Clients would drop a route with such a match.
		v.Failf("want method, path, all, any or not; path: /.* matches everything")
	}
	check(v.At("method"), m.Method, checkMethod(m.Method))
	check(v.At("path"), m.Path, checkPath(m.Path))
	for i, inner := range m.All {
		inner.validate(v.At("all").Item(i))
	}
	for i, inner := range m.Any {
		inner.validate(v.At("any").Item(i))
	}
	if m.Not != nil {
		m.Not.validate(v.At("not"))
	}
}

// check reports err, if any, as a mistake in value, which is at v.
func check(v yamlfile.Value, value string, err error) {
	if err != nil {
		v.Rejectf(value, "%v", err)
	}
}

// isURI reports whether an identity is a URI such as spiffe://cluster/pod rather than a DNS name.
func isURI(identity string) bool { return strings.Contains(identity, "://") }

// checkIdentity returns an error unless identity is empty, a DNS name or a URI with a host.
func checkIdentity(identity string) error {
	if identity == "" {
		return nil
	}
	if !isURI(identity) {
		return checkName(identity)
	}
	if u, err := url.Parse(identity); err != nil || u.Scheme == "" || u.Host == "" {
		return errors.New("want a URI such as spiffe://cluster.local/ns/shop/sa/web")
	}
	return nil
}

// checkAuthority returns an error unless name is empty or host[:port]. The host may be an IP
// address here, because clients only send the authority as a header and never resolve it.
func checkAuthority(name string) error {
	if name == "" {
		return nil
	}
	bare := name
	// A whole name in brackets is an IPv6 address without a port, which parseTarget expects without brackets.
	if strings.HasSuffix(name, "]") {
		bare = strings.Trim(name, "[]")
	}
	if _, err := parseTarget(bare); err != nil {
		return err
	}
	if !authority.Valid(name) {
		return errors.New("want host:port, with an IPv6 address in brackets")
	}
	return nil
}

// checkLabels reports labels whose name is empty.
func checkLabels(v yamlfile.Value, labels map[string]string) {
	if _, empty := labels[""]; empty {
		v.Failf("a label without a name")
	}
}

// registered returns the API's enum value for an HTTP method, and false if there is none.
func registered(method string) (http_types.HttpMethod_Registered, bool) {
	n, ok := http_types.HttpMethod_Registered_value[method]
	return http_types.HttpMethod_Registered(n), ok
}

// checkMethod returns an error if method contains a character that is not allowed in a token (RFC
// 9110, section 5.6.2), or if it is a standard method that is not in upper case. An empty method is
// valid, and means any method.
func checkMethod(method string) error {
	for _, r := range method {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return fmt.Errorf("%q is not allowed in a method", r)
		}
	}
	// Methods are case-sensitive: "get" would never match.
	upper := strings.ToUpper(method)
	if _, ok := registered(upper); ok && upper != method {
		return fmt.Errorf("methods are case-sensitive: write %s", upper)
	}
	return nil
}

// checkPath returns an error unless every proxy accepts pattern as a regular expression:
// gotower's own, through package profiles, and linkerd's, which would ignore a route with an
// invalid pattern.
func checkPath(pattern string) error {
	if err := rustregexp.Check(pattern); err != nil {
		return err
	}
	return profiles.ValidateMatch(profiles.Path(pattern))
}

// checkSplit returns an error unless a split's authority is name:port. Clients would drop a split
// with an IP address or without a port.
func checkSplit(authority string) error {
	t, err := parseTarget(authority)
	switch {
	case err != nil:
		return err
	case t.ip:
		return errors.New("want a name with a port, not an IP address")
	// parseTarget would accept this, and add a default port.
	case !strings.Contains(authority, ":"):
		return errors.New("want a name with a port, such as web.shop.svc.cluster.local:80")
	}
	return nil
}
