package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// parseRoots reads trust anchors. Text between certificates is a comment, as
// other tools have it; a block that is not a certificate, or cut short, is a
// mistake: an anchor that was meant to be there would not be.
func parseRoots(data []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for rest := data; ; n++ {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is a %s, not a CERTIFICATE", n+1, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
	}
	switch begun := bytes.Count(data, []byte("-----BEGIN")); {
	case n == 0:
		return nil, errors.New("there is no certificate in PEM")
	case begun > n:
		return nil, fmt.Errorf("of %d blocks of PEM %d cannot be read", begun, begun-n)
	}
	return pool, nil
}
