package settings

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/gotower/gotower/internal/caller"
)

// isName reports whether s is a DNS name, perhaps with a final dot. IP addresses are not names.
func isName(s string) bool { return caller.IsDNS(strings.TrimSuffix(s, ".")) }

// parseName parses a DNS name, and returns it in lower case without the final dot, as names are compared.
func parseName(s string) (string, error) {
	if !isName(s) {
		return "", errors.New("must be a DNS name")
	}
	return strings.ToLower(strings.TrimSuffix(s, ".")), nil
}

// parseID parses an identity: a DNS name, or a SPIFFE ID such as spiffe://cluster.local/web.
func parseID(s string) (string, error) {
	if caller.IsURI(s) {
		if caller.Check(s) != nil {
			return "", errors.New("must be a SPIFFE ID such as spiffe://cluster.local/ns/default/sa/web, the trust domain in lower case")
		}
		return s, nil
	}
	name, err := parseName(s)
	if err != nil {
		return "", errors.New("must be a DNS name or spiffe://…")
	}
	return name, nil
}

// parseAnchors validates PEM certificates and returns s unchanged. Text between the certificates is
// allowed. Errors never contain s, because it may be a private key by mistake.
func parseAnchors(s string) ([]byte, error) {
	// n counts the valid certificates.
	n := 0
	for block, rest := pem.Decode([]byte(s)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("contains a %s; must be certificates", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		n++
	}
	// pem.Decode skips blocks that it cannot decode. Counting their beginnings finds them.
	switch begun := strings.Count(s, "-----BEGIN"); {
	case n == 0:
		return nil, errors.New("must be certificates in PEM")
	case begun > n:
		return nil, fmt.Errorf("%[2]d of %[1]d PEM blocks are invalid", begun, begun-n)
	}
	return []byte(s), nil
}
