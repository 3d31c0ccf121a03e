package trust_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/trust"
	"github.com/gotower/gotower/examples/tapctl/trust/trusttest"
)

// At the start, tapctl reports invalid files by their names.
func TestFiles(t *testing.T) {
	ca, dir := trusttest.New(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	trusttest.Write(t, at("cert.pem"), at("key.pem"), ca.Issue(t, "me"))
	trusttest.Write(t, at("both.pem"), at("both.pem"), ca.Issue(t, "me"))
	trusttest.Write(t, at("other.pem"), at("other-key.pem"), ca.Issue(t, "me"))
	trusttest.Write(t, at("old.pem"), at("old.pem"), ca.Expired(t, "me"))
	require.NoError(t, os.WriteFile(at("text"), []byte("no certificate"), 0o600))
	anchors, err := os.ReadFile(ca.File)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at("cut.pem"), append(anchors, anchors[:100]...), 0o600))

	web := trust.Server{Identity: "web.default"}
	for _, tt := range []struct {
		name   string
		files  trust.Files
		server trust.Server
		says   []string // nothing: it is good
	}{
		{"anchors alone", trust.Files{Anchors: ca.File}, web, nil},
		{"two files", trust.Files{ca.File, at("cert.pem"), at("key.pem")}, web, nil},
		{"both in one", trust.Files{ca.File, at("both.pem"), ""}, web, nil},
		{"no anchors but the system's", trust.Files{Cert: at("both.pem")}, trust.Server{Name: "web"}, nil},
		{"a SPIFFE ID", trust.Files{Anchors: ca.File}, trust.Server{Identity: "spiffe://cluster.local/ns/default/sa/web"}, nil},

		{"anchors are not there", trust.Files{Anchors: at("nothing")}, web, []string{"trust anchors: ", at("nothing"), "no such file", "--cacert"}},
		{"anchors are none", trust.Files{Anchors: at("text")}, web, []string{at("text") + ": no PEM certificate found", "--cacert"}},
		{"anchors with a key", trust.Files{Anchors: at("both.pem")}, web, []string{at("both.pem") + ": block 2 is a PRIVATE KEY", "--cacert"}},
		{"anchors are cut short", trust.Files{Anchors: at("cut.pem")}, trust.Server{Name: "web"}, []string{at("cut.pem") + ": 1 of 2 PEM blocks are invalid"}},
		{"the certificate is not there", trust.Files{ca.File, at("nothing"), ""}, web, []string{"client certificate " + at("nothing"), "no such file", "--cert"}},
		{"the key is not there", trust.Files{ca.File, at("cert.pem"), at("nothing")}, web, []string{"client certificate ", at("nothing"), "no such file"}},
		{"the key is missing", trust.Files{ca.File, at("cert.pem"), ""}, web, []string{at("cert.pem"), "key", "--key"}},
		{"the key is another's", trust.Files{ca.File, at("cert.pem"), at("other-key.pem")}, web, []string{
			at("cert.pem") + ", with the key " + at("other-key.pem"), "private key does not match",
		}},
		{"the certificate is none", trust.Files{ca.File, at("text"), at("key.pem")}, web, []string{at("text"), "failed to find any PEM data in certificate input"}},
		{"the certificate expired", trust.Files{ca.File, at("old.pem"), ""}, web, []string{at("old.pem") + ": it expired at 20", "Renew the client certificate (--cert)"}},
		{"an invalid identity", trust.Files{Anchors: ca.File}, trust.Server{Identity: "web default"}, []string{`"web default"`, "--server-identity"}},
		{"an identity without trust anchors", trust.Files{}, web, []string{"needs trust anchors", "--cacert"}},
		{"a key alone", trust.Files{Key: at("key.pem")}, trust.Server{Name: "web"}, []string{"a key without a certificate", "--cert"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := trust.New(tt.files, tt.server)
			if tt.says == nil {
				require.NoError(t, err)
				require.NotNil(t, c)
				return
			}
			var e *trust.Error
			require.ErrorAs(t, err, &e)
			for _, want := range tt.says {
				require.ErrorContains(t, err, want)
			}
		})
	}
}
