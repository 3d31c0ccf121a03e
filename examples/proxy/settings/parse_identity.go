package settings

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/gotower/gotower/internal/caller"
)

// isName reports whether s is written as a DNS name, with or without a dot at
// the end. An address is none.
func isName(s string) bool { return caller.IsDNS(strings.TrimSuffix(s, ".")) }

func parseName(s string) (string, error) {
	if !isName(s) {
		return "", errors.New("must be a DNS name")
	}
	return strings.ToLower(strings.TrimSuffix(s, ".")), nil
}

// parseID reads an identity: a DNS name, or a URI such as spiffe://….
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

// parseAnchors reads certificates in PEM, and nothing else but what is written
// between them. What it says does not tell what it has read: it may be a key.
func parseAnchors(s string) ([]byte, error) {
	n := 0
	for block, rest := pem.Decode([]byte(s)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s; it must be certificates", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		n++
	}
	switch begun := strings.Count(s, "-----BEGIN"); {
	case n == 0:
		return nil, errors.New("must be certificates in PEM")
	case begun > n:
		return nil, fmt.Errorf("%[2]d of %[1]d PEM blocks are invalid", begun, begun-n)
	}
	return []byte(s), nil
}
