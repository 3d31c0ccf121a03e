package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"sync"
	"time"
)

// maxChains is the maximum number of chains in a verifiedChains. When it is reached, all are forgotten,
// which costs only that they are verified again.
const maxChains = 1024

// verifiedChains caches which of the peers' certificate chains were verified, so that no signatures
// need to be verified for the next connection to the same server, or when the same client resumes
// its session.
type verifiedChains struct {
	mu      sync.Mutex
	expires map[[sha256.Size]byte]time.Time // by the hash of the key usage and the chain
}

// verify verifies chain for the given key usage like the function [verify], unless an earlier call
// has verified it and it has not expired. All calls must pass the same roots, because they are not
// part of the cache key.
func (v *verifiedChains) verify(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) error {
	// The whole chain, and not only its first certificate, decides whether it is valid.
	hash := sha256.New()
	hash.Write([]byte{byte(usage)})
	for _, c := range chain {
		hash.Write(c.Raw)
	}
	key := [sha256.Size]byte(hash.Sum(nil))
	// verify runs without the lock, because signatures take long. Two goroutines may verify the same chain.
	v.mu.Lock()
	expires, ok := v.expires[key]
	v.mu.Unlock()
	if ok && time.Now().Before(expires) {
		return nil
	}
	expires, err := verify(chain, roots, usage)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	// Dropping all is simpler than finding the oldest one, and only costs some verifications.
	if v.expires == nil || len(v.expires) >= maxChains {
		v.expires = make(map[[sha256.Size]byte]time.Time)
	}
	v.expires[key] = expires
	return nil
}
