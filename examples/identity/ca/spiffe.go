package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"
)

// Limits of the SPIFFE-ID standard, in bytes.
const (
	maxTrustDomain = 255
	maxSPIFFEID    = 2048
)

// CheckTrustDomain returns an error if domain is not a trust domain as the SPIFFE-ID standard
// defines it, such as "cluster.local".
func CheckTrustDomain(domain string) error {
	// Trim removes all characters that are allowed, so nothing may remain.
	if domain == "" || len(domain) > maxTrustDomain || strings.Trim(domain, lowerChars+digitChars+"-._") != "" {
		return fmt.Errorf("trust domain %q: must have 1 to %d bytes: lower-case letters, digits, '-', '.' and '_'", domain, maxTrustDomain)
	}
	return nil
}

// trustDomainOf returns the trust domain of id. It returns an error if id is not a workload's
// SPIFFE ID: spiffe://DOMAIN/SEGMENT, with one or more segments. A segment is not "." or "..", so
// that no reader of the name can resolve it to another workload's name.
func trustDomainOf(id string) (domain string, err error) {
	rest, ok := strings.CutPrefix(id, "spiffe://")
	domain, path, hasPath := strings.Cut(rest, "/")
	switch {
	case !ok:
		return "", errors.New("the scheme must be spiffe")
	case len(id) > maxSPIFFEID:
		return "", fmt.Errorf("it has %d bytes, at most %d are allowed", len(id), maxSPIFFEID)
	case !hasPath:
		return "", errors.New("it must have a path")
	}
	// Dot segments and empty ones could be resolved to another path.
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.Trim(segment, letterChars+digitChars+"-._") != "" {
			return "", fmt.Errorf("segment %q of the path: must have letters, digits, '-', '.' and '_', and not be a dot segment", segment)
		}
	}
	return domain, CheckTrustDomain(domain)
}

// Letters and digits that names may contain, in addition to '-', '.' and '_'. A trust domain may contain
// lowerChars and digitChars, and a segment of a path letterChars and digitChars.
const (
	lowerChars  = "abcdefghijklmnopqrstuvwxyz"
	letterChars = lowerChars + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digitChars  = "0123456789"
)

// Limits for RSA keys in bits. Crypto/tls rejects signatures by larger keys.
const (
	minRSA = 2048
	maxRSA = 8192
)

// checkKey returns an error unless key is an Ed25519 key, an ECDSA key on P-256, P-384 or P-521, or an RSA
// key with minRSA to maxRSA bits. Weaker keys are insecure.
func checkKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		// Larger keys would let a client cause expensive computations.
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Errorf("the RSA key has %d bits, must have %d to %d", bits, minRSA, maxRSA)
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return fmt.Errorf("the ECDSA key is on the curve %s, must be on P-256, P-384 or P-521", key.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("the key is a %T, must be RSA, ECDSA or Ed25519", key)
	}
	return nil
}
