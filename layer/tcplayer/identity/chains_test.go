package identity

import (
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A verified chain is valid until one of its certificates expires.
func TestVerifiedChainExpires(t *testing.T) {
	for name, life := range map[string]struct{ leaf, issuer time.Duration }{
		"leaf": {time.Hour, 2 * time.Hour}, "issuer": {2 * time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuthorityUntil(t, time.Now().Add(life.issuer))
				chain := []*x509.Certificate{a.pair(web, life.leaf).Leaf, a.issuer}
				var v verifiedChains
				for range 3 {
					require.NoError(t, v.verify(chain, a.pool(), x509.ExtKeyUsageServerAuth))
					time.Sleep(20*time.Minute - time.Second)
				}
				require.Len(t, v.expires, 1)
				time.Sleep(4 * time.Second)
				require.ErrorContains(t, v.verify(chain, a.pool(), x509.ExtKeyUsageServerAuth), "certificate has expired")
			})
		})
	}
}

// Only the whole chain that was verified is known.
func TestVerifiedChainIsWhole(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	leaf := a.pair(web, time.Hour).Leaf
	var v verifiedChains
	require.NoError(t, v.verify([]*x509.Certificate{leaf, a.issuer}, a.pool(), x509.ExtKeyUsageServerAuth))
	for name, chain := range map[string][]*x509.Certificate{
		"no issuer":       {leaf},
		"another issuer":  {leaf, stranger.issuer},
		"another leaf":    {stranger.pair(web, time.Hour).Leaf, a.issuer},
		"for another use": {a.pair(web, time.Hour, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }).Leaf, a.issuer},
	} {
		for range 2 {
			require.Error(t, v.verify(chain, a.pool(), x509.ExtKeyUsageServerAuth), name)
		}
	}
	assert.Len(t, v.expires, 1)
}

func TestVerifiedChainsAreBounded(t *testing.T) {
	a := newAuthority(t)
	var v verifiedChains
	key := newKey(t)
	for range maxChains + 2 {
		require.NoError(t, v.verify([]*x509.Certificate{a.leaf(key.Public(), web, time.Hour), a.issuer}, a.pool(), x509.ExtKeyUsageServerAuth))
	}
	assert.Len(t, v.expires, 2)
}
