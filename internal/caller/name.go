package caller

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/netip"
	"strings"
)

// Names returns the DNS-like names and URIs among the subject alternative names of a
// certificate or certificate request. It keeps their order.
func Names(extensions []pkix.Extension) []string {
	for _, e := range extensions {
		// The object identifier of subject alternative names.
		if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) {
			return alternatives(e.Value)
		}
	}
	return nil
}

// alternatives parses subject alternative names (RFC 5280, section 4.2.1.6).
// crypto/x509 cannot be used, because it sorts them by kind.
func alternatives(der []byte) (names []string) {
	const dns, uri = 2, 6 // the tags of dNSName and uniformResourceIdentifier
	var sequence, element asn1.RawValue
	if _, err := asn1.Unmarshal(der, &sequence); err != nil || !sequence.IsCompound {
		return nil
	}
	for rest := sequence.Bytes; len(rest) > 0; {
		var err error
		if rest, err = asn1.Unmarshal(rest, &element); err != nil {
			return nil
		}
		name := string(element.Bytes)
		switch {
		case element.Class != asn1.ClassContextSpecific || element.IsCompound: // crypto/x509 applies no name constraint to it
		case element.Tag == dns && IsDNS(name), element.Tag == uri && IsURI(name):
			names = append(names, name)
		}
	}
	return names
}

// IsURI reports whether name is a URI, such as a SPIFFE ID.
func IsURI(name string) bool { return strings.Contains(name, "://") }

// IsDNS reports whether name looks like a host name without a final dot. It returns false for an IP
// address.
func IsDNS(name string) bool {
	// RFC 1035, section 2.3.4, has these limits for a name and below for a label.
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label || strings.ContainsFunc(label, notInLabel) {
			return false
		}
	}
	// Only a name that ends with a digit can be an IPv4 address.
	if last := name[len(name)-1]; last < '0' || last > '9' {
		return true // ParseAddr would allocate an error
	}
	_, err := netip.ParseAddr(name)
	return err != nil
}

// notInLabel reports whether r is not allowed in a label of a host name.
func notInLabel(r rune) bool {
	// The bit 0x20 makes an ASCII letter lower case.
	lower := r | 0x20
	return (lower < 'a' || lower > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
