package controller

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/profiles"
)

// Checks of single values of a [Config]. For a file, the caller adds the line to the
// error.

// checkAddr returns an error for a missing address, and for an address to which a client on
// another machine cannot connect: an address with a zone, the unspecified address, or an
// address with port 0.
func checkAddr(addr netip.AddrPort) error {
	switch {
	case !addr.IsValid():
		return errors.New("addr is required")
	case addr.Addr().Zone() != "":
		return fmt.Errorf("addr %s: must not have a zone", addr)
	case addr.Addr().IsUnspecified():
		return fmt.Errorf("addr %s: must not be the unspecified address", addr)
	case addr.Port() == 0:
		return fmt.Errorf("addr %s: the port must not be 0", addr)
	}
	return nil
}

func checkProtocol(p Protocol) error {
	switch p {
	case Unknown, H2, Opaque:
		return nil
	}
	return fmt.Errorf("protocol %q must be %q or %q", string(p), string(H2), string(Opaque))
}

// isURI reports whether an identity is a URI, such as spiffe://cluster/pod. The other
// identities are DNS names.
func isURI(identity string) bool { return strings.Contains(identity, "://") }

// checkIdentity returns an error unless identity is empty, a DNS name or a URI with a host.
func checkIdentity(identity string) error {
	if identity == "" {
		return nil
	}
	if !isURI(identity) {
		if err := checkName(identity); err != nil {
			return fmt.Errorf("identity: %w", err)
		}
		return nil
	}
	if u, err := url.Parse(identity); err != nil || u.Scheme == "" || u.Host == "" {
		return fmt.Errorf("identity %q must be a URI", identity)
	}
	return nil
}

// checkServerName returns an error for a combination of server_name and identity that is
// not allowed. A server_name requires an identity and must be a DNS name. An identity that
// is a URI requires a server_name, because clients would otherwise connect in cleartext.
func checkServerName(serverName, identity string) error {
	switch {
	case serverName == "" && isURI(identity):
		return fmt.Errorf("identity %q is a URI and requires a server_name", identity)
	case serverName == "":
		return nil
	case identity == "":
		return errors.New("server_name requires an identity")
	}
	if err := checkName(serverName); err != nil {
		return fmt.Errorf("server_name: %w", err)
	}
	return nil
}

// checkInboundPort returns an error for a port that clients would ignore. A port requires
// an identity, and must not be 65535. Port 0 is valid, because it means that no port is
// configured.
func checkInboundPort(port uint16, identity string) error {
	switch {
	case port == 0:
		return nil
	case identity == "":
		return errors.New("opaque_port requires an identity")
	case port == math.MaxUint16:
		return fmt.Errorf("opaque_port %d: must be from 1 to %d", port, math.MaxUint16-1)
	}
	return nil
}

// checkAuthority returns an error unless name is empty or host[:port]. The host may be an
// IP address, because clients send the authority as a header and do not resolve it.
func checkAuthority(name string) error {
	if name == "" {
		return nil
	}
	bare := name
	if strings.HasSuffix(name, "]") {
		bare = strings.Trim(name, "[]")
	}
	if _, err := parseTarget(bare); err != nil {
		return fmt.Errorf("authority %w", err)
	}
	if !authority.Valid(name) {
		return fmt.Errorf("authority %q is not host:port: an IPv6 address requires brackets", name)
	}
	return nil
}

// checkLabels returns an error for a label with an empty name.
func checkLabels(labels map[string]string) error {
	if _, empty := labels[""]; empty {
		return errors.New("a label must have a name")
	}
	return nil
}

// registered returns the enum value of the API for an HTTP method. It returns false if the
// API has no enum value for the method.
func registered(method string) (http_types.HttpMethod_Registered, bool) {
	n, ok := http_types.HttpMethod_Registered_value[method]
	return http_types.HttpMethod_Registered(n), ok
}

// checkMethod returns an error unless method is a token of RFC 9110, section 5.6.2. A
// standard method must be in upper case, because methods are case-sensitive.
func checkMethod(method string) error {
	for _, r := range method {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return fmt.Errorf("method %q: %q is not allowed in a method", method, r)
		}
	}
	// Methods are case-sensitive: "get" would never match.
	upper := strings.ToUpper(method)
	if _, ok := registered(upper); ok && upper != method {
		return fmt.Errorf("method %q: methods are case-sensitive, write %s", method, upper)
	}
	return nil
}

// checkPath returns an error unless pattern is a regular expression of Go that package
// profiles accepts. Linkerd's proxies use the syntax of Rust instead, which is the same for
// usual paths.
func checkPath(pattern string) error {
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	return profiles.Route{Match: profiles.Path(pattern)}.Validate()
}

// checkStatus returns an error unless lowest to highest is a range of status codes within
// 100 to 999. Both limits are required, because clients drop a response class with only one
// limit.
func checkStatus(lowest, highest uint32) error {
	if lowest < 100 || highest > 999 || lowest > highest {
		return fmt.Errorf("status %d-%d must be a range within 100-999", lowest, highest)
	}
	return nil
}

func checkTimeout(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("timeout %v must not be negative", d)
	}
	return nil
}

// checkSplit returns an error unless the authority of a split is name:port. Clients drop a
// split that has an IP address or no port.
func checkSplit(s Split) error {
	t, err := parseTarget(s.Authority)
	switch {
	case err != nil:
		return fmt.Errorf("split: %w", err)
	case t.ip:
		return fmt.Errorf("split: %q must be a name, not an IP address", s.Authority)
	case !strings.Contains(s.Authority, ":"):
		return fmt.Errorf("split: %q must have a port", s.Authority)
	}
	return nil
}

// checkRatio returns an error unless r, the ratio of a retry budget, is from 0 to 1000.
// Clients ignore a budget with a value outside its limits.
func checkRatio(r float64) error {
	if math.IsNaN(r) || r < 0 || r > 1000 {
		return fmt.Errorf("ratio %v must be a number from 0 to 1000", r)
	}
	return nil
}

func checkMinPerSecond(n uint32) error {
	if n > math.MaxInt32 {
		return fmt.Errorf("min_per_second %d must be at most %d", n, math.MaxInt32)
	}
	return nil
}

func checkTTL(d time.Duration) error {
	if d < time.Second || d > time.Minute {
		return fmt.Errorf("ttl %v must be from 1s to 1m", d)
	}
	return nil
}

// sortedKeys returns the keys of m in sorted order, so that the order of errors does not
// change between calls.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
