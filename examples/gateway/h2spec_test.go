package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/examples/internal/h2spectest"
)

// TestH2Spec needs GOTOWER_TESTS=full, and the program that .ci/h2spec.sh builds. It uses TLS,
// because a cleartext listener also speaks HTTP/1.1, and rejects an invalid preface by a 400.
func TestH2Spec(t *testing.T) {
	dir := t.TempDir()
	certtest.New(t, "books.example").Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	file := filepath.Join(dir, "gateway.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
listeners:
- name: https
  address: 127.0.0.1:0
  protocol: HTTPS
  tls: {certificates: [{certificateChain: books.crt, privateKey: books.key}]}
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
drainTimeout: 1s
services:
`+service("a", serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	}))+`
routes: [{name: all, backendRefs: [{name: a}]}]
`), 0o600))
	p := startFile(t, file)
	h2spectest.Run(t, map[string]h2spectest.Server{"TLS": {Addr: p.addresses["https"], TLS: true}})
}
