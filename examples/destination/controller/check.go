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

// checkAddr rejects addresses that other machines cannot connect to.
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

// isURI reports whether an identity is a URI. Other identities contain no slashes.
func isURI(identity string) bool { return strings.Contains(identity, "://") }

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

// checkServerName requires a server name for a URI identity, because clients would
// otherwise use cleartext.
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

// checkInboundPort rejects ports that proxies ignore: those without an identity, and
// 65535.
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

// checkAuthority returns an error unless name is a valid authority. An IP address is
// valid, because authorities are sent and not resolved.
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

func checkLabels(labels map[string]string) error {
	if _, empty := labels[""]; empty {
		return errors.New("a label must have a name")
	}
	return nil
}

// registered returns the enum value of a method.
func registered(method string) (http_types.HttpMethod_Registered, bool) {
	n, ok := http_types.HttpMethod_Registered_value[method]
	return http_types.HttpMethod_Registered(n), ok
}

// checkMethod returns an error unless method is an upper-case token (RFC 9110, section
// 5.6.2).
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

// checkPath returns an error unless pattern is a valid regular expression of Go that
// package profiles accepts. Proxies use Rust's regular expressions, which have the same
// syntax for usual paths.
func checkPath(pattern string) error {
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	return profiles.Route{Match: profiles.Path(pattern)}.Validate()
}

// checkStatus requires both limits, because proxies drop a class without one.
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

// checkSplit rejects addresses and names without a port, because proxies drop them.
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

// Limits of a retry budget. Proxies ignore a budget that exceeds them.

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

// sortedKeys returns sorted keys, for a stable order of errors and messages.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
