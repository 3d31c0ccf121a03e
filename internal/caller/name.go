package caller

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/netip"
	"strings"
)

// Names returns the names that a certificate, or a request for one, has among its
// extensions: those that are DNS-like, and URIs, in its order.
func Names(extensions []pkix.Extension) []string {
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
		case one.Class != asn1.ClassContextSpecific || one.IsCompound: // which crypto/x509 holds to no constraint
		case one.Tag == dns && IsDNS(name), one.Tag == uri && IsURI(name):
			names = append(names, name)
		}
	}
	return names
}

// IsURI reports whether name is a URI, as a SPIFFE ID is.
func IsURI(name string) bool { return strings.Contains(name, "://") }

// IsDNS reports whether name is like that of a host, with nothing to end it.
func IsDNS(name string) bool {
	const in = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label || strings.Trim(label, in) != "" {
			return false
		}
	}
	_, err := netip.ParseAddr(name)
	return err != nil
}
