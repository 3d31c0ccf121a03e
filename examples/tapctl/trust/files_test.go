package trust

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

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

	web := Server{Identity: "web.default"}
	for _, tt := range []struct {
		name   string
		files  Files
		server Server
		says   []string // nothing: it is good
	}{
		{"anchors alone", Files{Anchors: ca.File}, web, nil},
		{"two files", Files{ca.File, at("cert.pem"), at("key.pem")}, web, nil},
		{"both in one", Files{ca.File, at("both.pem"), ""}, web, nil},
		{"no anchors but the system's", Files{Cert: at("both.pem")}, Server{Name: "web"}, nil},
		{"a SPIFFE ID", Files{Anchors: ca.File}, Server{Identity: "spiffe://cluster.local/ns/default/sa/web"}, nil},

		{"anchors are not there", Files{Anchors: at("nothing")}, web, []string{"trust anchors: ", at("nothing"), "no such file", "--cacert"}},
		{"anchors are none", Files{Anchors: at("text")}, web, []string{at("text") + ": no PEM certificate found", "--cacert"}},
		{"anchors with a key", Files{Anchors: at("both.pem")}, web, []string{at("both.pem") + ": block 2 is a PRIVATE KEY", "--cacert"}},
		{"anchors are cut short", Files{Anchors: at("cut.pem")}, Server{Name: "web"}, []string{at("cut.pem") + ": 1 of 2 PEM blocks are invalid"}},
		{"the certificate is not there", Files{ca.File, at("nothing"), ""}, web, []string{"client certificate " + at("nothing"), "no such file", "--cert"}},
		{"the key is not there", Files{ca.File, at("cert.pem"), at("nothing")}, web, []string{"client certificate ", at("nothing"), "no such file"}},
		{"the key is missing", Files{ca.File, at("cert.pem"), ""}, web, []string{at("cert.pem"), "key", "--key"}},
		{"the key is another's", Files{ca.File, at("cert.pem"), at("other-key.pem")}, web, []string{
			at("cert.pem") + ", with the key " + at("other-key.pem"), "private key does not match",
		}},
		{"the certificate is none", Files{ca.File, at("text"), at("key.pem")}, web, []string{at("text"), "failed to find any PEM data in certificate input"}},
		{"the certificate expired", Files{ca.File, at("old.pem"), ""}, web, []string{at("old.pem") + ": it expired at 20", "Renew the client certificate (--cert)"}},
		{"an invalid identity", Files{Anchors: ca.File}, Server{Identity: "web default"}, []string{`"web default"`, "--server-identity"}},
		{"an identity without trust anchors", Files{}, web, []string{"needs trust anchors", "--cacert"}},
		{"a key alone", Files{Key: at("key.pem")}, Server{Name: "web"}, []string{"a key without a certificate", "--cert"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := New(tt.files, tt.server)
			if tt.says == nil {
				require.NoError(t, err)
				require.NotNil(t, c)
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			for _, want := range tt.says {
				require.ErrorContains(t, err, want)
			}
		})
	}
}
