package identity

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/caller"
)

// checkName says why name can be nobody's, or nil.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the identity has no name")
	case caller.IsURI(name):
		return checkSPIFFE(name)
	case !caller.IsDNS(name):
		return fmt.Errorf("the identity %q is neither DNS-like, as web.default, nor as spiffe://cluster.local/ns/default/sa/web", name)
	}
	return nil
}

// checkSPIFFE looks at the form of a SPIFFE ID (SPIFFE-ID, 2).
func checkSPIFFE(id string) error {
	u, err := url.Parse(id)
	switch {
	case err != nil:
		return fmt.Errorf("the identity: %w", err)
	case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("the identity %q has other characters than the visible ones of ASCII", id)
	case len(id) > 2048:
		return fmt.Errorf("the identity has %d bytes, which is more than 2048", len(id))
	case !strings.HasPrefix(id, "spiffe://") || u.Host == "":
		return fmt.Errorf("the identity %q does not begin as spiffe://cluster.local/", id)
	case u.User != nil || u.Port() != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(id, "#"):
		return fmt.Errorf("the identity %q has more than a trust domain and a path", id)
	}
	return checkDomain(id, u.Host)
}

// checkDomain looks at the trust domain of a SPIFFE ID. crypto/x509 reads no
// certificate with a URI in which a name between two dots is empty.
func checkDomain(id, domain string) error {
	if strings.ToLower(domain) != domain {
		return fmt.Errorf("the trust domain of the identity %q is not in lower case", id)
	}
	for name := range strings.SplitSeq(domain, ".") {
		if !caller.IsDNS(name) {
			return fmt.Errorf("the trust domain of the identity %q is not like the name of a host, at %q", id, name)
		}
	}
	return nil
}

// has reports whether name is one of names.
func has(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return same(n, name) })
}

func same(a, b string) bool {
	return a == b || !caller.IsURI(a) && !caller.IsURI(b) && strings.EqualFold(a, b)
}

// list is names for people. A stranger chose them, and how many there are.
func list(names []string) string {
	const most = 4
	switch more := len(names) - most; {
	case len(names) == 0:
		return "nobody"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
