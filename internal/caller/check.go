package caller

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Check says why name can be nobody's identity, or nil.
func Check(name string) error {
	switch {
	case name == "":
		return errors.New("the identity has no name")
	case IsURI(name):
		return checkSPIFFE(name)
	case !IsDNS(name):
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
		if !IsDNS(name) {
			return fmt.Errorf("the trust domain of the identity %q is not like the name of a host, at %q", id, name)
		}
	}
	return nil
}
