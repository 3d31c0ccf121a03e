package caller

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Check returns an error if name cannot be an identity: a DNS-like name or a SPIFFE ID.
func Check(name string) error {
	switch {
	case name == "":
		return errors.New("the identity is empty")
	case IsURI(name):
		return checkSPIFFE(name)
	case !IsDNS(name):
		return fmt.Errorf("the identity %q must be DNS-like, as web.default, or like spiffe://cluster.local/ns/default/sa/web", name)
	}
	return nil
}

// checkSPIFFE checks the form of a SPIFFE ID (SPIFFE-ID, section 2).
func checkSPIFFE(id string) error {
	u, err := url.Parse(id)
	switch {
	case err != nil:
		return fmt.Errorf("the identity: %w", err)
	case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("the identity %q must have printable ASCII characters only", id)
	case len(id) > 2048:
		return fmt.Errorf("the identity has %d bytes, limit 2048", len(id))
	case !strings.HasPrefix(id, "spiffe://") || u.Host == "":
		return fmt.Errorf("the identity %q must begin like spiffe://cluster.local/", id)
	case u.User != nil || u.Port() != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(id, "#"):
		return fmt.Errorf("the identity %q must have only a trust domain and a path", id)
	}
	return checkDomain(id, u.Host)
}

// checkDomain checks the trust domain of the SPIFFE ID id. A domain with an empty label is
// an error, because crypto/x509 rejects certificates with such a host in a URI.
func checkDomain(id, domain string) error {
	if strings.ToLower(domain) != domain {
		return fmt.Errorf("the trust domain of the identity %q must be in lower case", id)
	}
	for name := range strings.SplitSeq(domain, ".") {
		if !IsDNS(name) {
			return fmt.Errorf("the trust domain of the identity %q must be a host name, at %q", id, name)
		}
	}
	return nil
}
