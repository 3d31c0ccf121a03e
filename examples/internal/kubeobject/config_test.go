package kubeobject_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// Paths in a kubeconfig are relative to its directory.
func TestClientConfigRelativePath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(path, []byte(`
current-context: a
contexts: [{name: a, context: {cluster: a, user: a, namespace: web}}]
clusters: [{name: a, cluster: {server: "https://192.0.2.1"}}]
users: [{name: a, user: {tokenFile: token}}]
`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("s3cret"), 0o600))
	cfg, err := kubeobject.ClientConfig(path)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "token"), cfg.BearerTokenFile)
	require.Equal(t, "https://192.0.2.1", cfg.Host)
	cfg, namespace, err := kubeobject.UserConfig(path, "")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "token"), cfg.BearerTokenFile)
	require.Equal(t, "web", namespace)
}

func TestUserConfigMissing(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	_, _, err := kubeobject.UserConfig("", "")
	require.EqualError(t, err, "no cluster: --kubeconfig is not set, and neither KUBECONFIG nor ~/.kube/config is a configuration")
	_, _, err = kubeobject.UserConfig("/nonexistent", "")
	require.ErrorContains(t, err, "/nonexistent: no such file or directory")
}
