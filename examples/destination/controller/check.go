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

// The checks of single values. Both ways into the controller use them: a
// [Config], and a file, which adds the line to the error.

// checkAddr refuses what a client could not connect to from elsewhere.
func checkAddr(addr netip.AddrPort) error {
	switch {
	case !addr.IsValid():
		return errors.New("addr is missing")
	case addr.Addr().Zone() != "":
		return fmt.Errorf("addr %s: an address with a zone means nothing to others", addr)
	case addr.Addr().IsUnspecified():
		return fmt.Errorf("addr %s: nobody can connect to the unspecified address", addr)
	case addr.Port() == 0:
		return fmt.Errorf("addr %s: the port is 0", addr)
	}
	return nil
}

func checkProtocol(p Protocol) error {
	switch p {
	case Unknown, H2, Opaque:
		return nil
	}
	return fmt.Errorf("protocol %q is neither %q nor %q", string(p), string(H2), string(Opaque))
}

// isURI tells the two kinds of identity apart: names have no slashes.
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
		return fmt.Errorf("identity %q is not a URI", identity)
	}
	return nil
}

// checkServerName knows that a URI cannot be a server name: clients treat an
// endpoint with one and without a name as cleartext.
func checkServerName(serverName, identity string) error {
	switch {
	case serverName == "" && isURI(identity):
		return fmt.Errorf("identity %q is a URI and needs a server_name", identity)
	case serverName == "":
		return nil
	case identity == "":
		return errors.New("server_name without an identity")
	}
	if err := checkName(serverName); err != nil {
		return fmt.Errorf("server_name: %w", err)
	}
	return nil
}

// checkInboundPort knows that proxies ignore the port unless they can verify
// who answers there, and the last of all ports.
func checkInboundPort(port uint16, identity string) error {
	switch {
	case port == 0:
		return nil
	case identity == "":
		return errors.New("opaque_port without an identity: no proxy would go there")
	case port == math.MaxUint16:
		return fmt.Errorf("opaque_port %d: proxies take 1 to %d", port, math.MaxUint16-1)
	}
	return nil
}

// checkAuthority takes an address too: it is sent, not resolved.
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
		return fmt.Errorf("authority %q is not host:port: brackets are for IPv6 addresses, and those need them", name)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if _, empty := labels[""]; empty {
		return errors.New("a label without a name")
	}
	return nil
}

// registered returns the enumerated form of a method.
func registered(method string) (http_types.HttpMethod_Registered, bool) {
	n, ok := http_types.HttpMethod_Registered_value[method]
	return http_types.HttpMethod_Registered(n), ok
}

// checkMethod takes the characters of a token (RFC 9110, section 5.6.2).
func checkMethod(method string) error {
	for _, r := range method {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return fmt.Errorf("method %q: %q is not allowed in a method", method, r)
		}
	}
	// Methods are matched as they are written: "get" would never match.
	upper := strings.ToUpper(method)
	if _, ok := registered(upper); ok && upper != method {
		return fmt.Errorf("method %q: methods are case-sensitive, write %s", method, upper)
	}
	return nil
}

// checkPath takes Go's regular expressions. Proxies use Rust's, which are the
// same for what one writes about paths: both are RE2's. What is too large for
// clients made of package profiles is refused.
func checkPath(pattern string) error {
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	return profiles.Route{Match: profiles.Path(pattern)}.Validate()
}

// checkStatus wants both ends: proxies drop a class that leaves one open.
func checkStatus(lowest, highest uint32) error {
	if lowest < 100 || highest > 999 || lowest > highest {
		return fmt.Errorf("status %d-%d is not a range within 100-999", lowest, highest)
	}
	return nil
}

func checkTimeout(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("timeout %v is negative", d)
	}
	return nil
}

// checkSplit refuses addresses, and names without a port, which proxies would
// drop from the split.
func checkSplit(s Split) error {
	t, err := parseTarget(s.Authority)
	switch {
	case err != nil:
		return fmt.Errorf("split: %w", err)
	case t.ip:
		return fmt.Errorf("split: %q is an IP address; traffic is split over names", s.Authority)
	case !strings.Contains(s.Authority, ":"):
		return fmt.Errorf("split: %q has no port", s.Authority)
	}
	return nil
}

// The limits of a budget are those that proxies apply: they ignore a whole
// budget that breaks one.

func checkRatio(r float64) error {
	if math.IsNaN(r) || r < 0 || r > 1000 {
		return fmt.Errorf("ratio %v is not a number from 0 to 1000", r)
	}
	return nil
}

func checkMinPerSecond(n uint32) error {
	if n > math.MaxInt32 {
		return fmt.Errorf("min_per_second %d is more than %d", n, math.MaxInt32)
	}
	return nil
}

func checkTTL(d time.Duration) error {
	if d < time.Second || d > time.Minute {
		return fmt.Errorf("ttl %v is not from 1s to 1m", d)
	}
	return nil
}

// sortedKeys gives maps one order, so that errors and messages have one.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
