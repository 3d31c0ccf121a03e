package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"sync"
	"time"
)

// maxChains is the maximum number of chains in a verifiedChains.
const maxChains = 1024

// verifiedChains has the certificate chains of peers that were verified. The next connection to
// the same server, or the next resumed connection of the same client, then costs no verification
// of signatures.
type verifiedChains struct {
	mu      sync.Mutex
	expires map[[sha256.Size]byte]time.Time // by the hash of the key usage and the chain
}

// verify returns an error unless chain is valid for the key usage in the argument use, as [verify]
// does. All calls must have the same roots.
func (v *verifiedChains) verify(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage) error {
	hash := sha256.New()
	hash.Write([]byte{byte(use)})
	for _, c := range chain {
		hash.Write(c.Raw)
	}
	key := [sha256.Size]byte(hash.Sum(nil))
	v.mu.Lock()
	expires, known := v.expires[key]
	v.mu.Unlock()
	if known && time.Now().Before(expires) {
		return nil
	}
	expires, err := verify(chain, roots, use)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.expires == nil || len(v.expires) >= maxChains {
		v.expires = make(map[[sha256.Size]byte]time.Time)
	}
	v.expires[key] = expires
	return nil
}
