//go:build unix

package trust

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/trust/trusttest"
)

// If a certificate is renewed between the reads of the certificate and its key, the new
// pair is used.
func TestRenewalBetweenReads(t *testing.T) {
	ca, dir := trusttest.New(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	trusttest.Write(t, at("cert.pem"), at("first.pem"), ca.Issue(t, "first"))
	trusttest.Write(t, at("new-cert.pem"), at("new-key.pem"), ca.Issue(t, "second"))

	// Opening the key for reading waits until renew opens it for writing. The certificate
	// has been read by then.
	require.NoError(t, syscall.Mkfifo(at("key.pem"), 0o600))
	renewed := make(chan error, 1)
	go func() { renewed <- renew(at) }()
	var p proof
	err := p.readCert(at("cert.pem"), at("key.pem"))
	require.NoError(t, <-renewed)
	require.NoError(t, err)
	require.Equal(t, []string{"second"}, p.cert.Leaf.DNSNames)
}

// renew replaces both files while the key is read. The key that is read is the new one.
func renew(at func(string) string) error {
	pipe, err := os.OpenFile(at("key.pem"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer pipe.Close()
	key, err := os.ReadFile(at("new-key.pem"))
	if err != nil {
		return err
	}
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.Rename(at("new-"+name), at(name)); err != nil {
			return err
		}
	}
	_, err = pipe.Write(key)
	return err
}
