package identity

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// checkName says why name can be nobody's, or nil.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the identity has no name")
	case isURI(name):
		return checkSPIFFE(name)
	case !isDNS(name):
		return fmt.Errorf("the identity %q is neither DNS-like, as web.default, nor as spiffe://cluster.local/ns/default/sa/web", name)
	}
	return nil
}

func isURI(name string) bool { return strings.Contains(name, "://") }

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
	case strings.ToLower(u.Host) != u.Host:
		return fmt.Errorf("the trust domain of the identity %q is not in lower case", id)
	case !isDomain(u.Host):
		return fmt.Errorf("the trust domain of the identity %q is not as that of a host: names of lower-case letters, digits, dashes and underscores, with a dot between each two", id)
	}
	return nil
}

// isDomain reports whether a certificate with a URI of that host can be read:
// crypto/x509 refuses empty names between dots.
func isDomain(host string) bool {
	for name := range strings.SplitSeq(host, ".") {
		if name == "" || strings.Trim(name, inNames) != "" {
			return false
		}
	}
	return true
}

// inNames are the characters of a DNS-like name, but for the dots.
const inNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// isDNS reports whether name is like that of a host, with nothing to end it.
func isDNS(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label || strings.Trim(label, inNames) != "" {
			return false
		}
	}
	_, err := netip.ParseAddr(name)
	return err != nil
}

// identities returns the names that a certificate, or a request for one, has
// among its extensions: those that are DNS-like, and URIs, in its order.
func identities(extensions []pkix.Extension) []string {
	for _, e := range extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) {
			return alternatives(e.Value)
		}
	}
	return nil
}

// alternatives reads subject alternative names (RFC 5280, 4.2.1.6). crypto/x509
// reads them too, but sorts them by kind, and which is the first matters.
func alternatives(der []byte) (names []string) {
	const dns, uri = 2, 6
	var all, one asn1.RawValue
	if _, err := asn1.Unmarshal(der, &all); err != nil || !all.IsCompound {
		return nil
	}
	for rest := all.Bytes; len(rest) > 0; {
		var err error
		if rest, err = asn1.Unmarshal(rest, &one); err != nil {
			return nil
		}
		name := string(one.Bytes)
		switch {
		case one.Class != asn1.ClassContextSpecific:
		case one.Tag == dns && isDNS(name), one.Tag == uri && isURI(name):
			names = append(names, name)
		}
	}
	return names
}

// has reports whether name is one of names.
func has(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return same(n, name) })
}

func same(a, b string) bool {
	return a == b || !isURI(a) && !isURI(b) && strings.EqualFold(a, b)
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
