package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/identity/ca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const workloads = `# kept
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    metadata: {annotations: {config.linkerd.io/other: x}}
    spec: {containers: [{name: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: node}
spec: {hostNetwork: true, containers: [{name: web}]}
`

func anchors(t *testing.T) string {
	t.Helper()
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "anchors.pem")
	require.NoError(t, os.WriteFile(file, authority.TrustAnchors(), 0o600))
	return file
}

func TestFilter(t *testing.T) {
	var out, errs bytes.Buffer
	file := anchors(t)
	require.NoError(t, run(t.Context(), []string{"-trust-anchors", file, "-image", "example/gotower:v1"}, strings.NewReader(workloads), &out, &errs))
	require.Equal(t, `deployment "web" injected
deployment "web" warning: annotation config.linkerd.io/other is ignored, because it is unknown
pod "node" skipped: it uses the network of the node
`, errs.String())
	require.True(t, strings.HasPrefix(out.String(), "# kept\n"))
	require.Contains(t, out.String(), "linkerd.io/proxy-version: v1")

	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	require.NoError(t, os.WriteFile(one, out.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(two, []byte("apiVersion: v1\nkind: ConfigMap"), 0o600))
	var removed bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-uninject", two, "-", one}, strings.NewReader("a: b"), &removed, &errs))
	require.Contains(t, removed.String(), "kind: ConfigMap\n---\na: b\n---\n# kept\n")
	require.NotContains(t, removed.String(), "linkerd-proxy")
}

func TestInvalidCommandLine(t *testing.T) {
	file := anchors(t)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, args := range map[string][]string{
		"-trust-anchors or -disable-identity is required": nil,
		"but not both":                      {"-trust-anchors", file, "-disable-identity"},
		"is empty":                          {"-trust-anchors", empty},
		"no such file":                      {"-trust-anchors", "/nonexistent"},
		"the proxy image must not be empty": {"-trust-anchors", file, "-image", ""},
		`the pull policy "x" must be Always, IfNotPresent`: {"-trust-anchors", file, "-image-pull-policy", "x"},
		"-listen requires -webhook":                        {"-trust-anchors", file, "-listen", ":1"},
		"INBOUND_DEFAULT_POLICY":                           {"-trust-anchors", file, "-default-inbound-policy", "x"},
		"must be without -uninject, -annotate and files":   {"-webhook", "-uninject"},
		"-cert-lifetime 1m0s: must be at least 24m0s":      {"-webhook", "-cert-lifetime", "1m"},
		"flag provided but not defined":                    {"-nonsense"},
		"/nonexistent/file: no such file or directory":     {"-trust-anchors", file, "/nonexistent/file"},
	} {
		var out bytes.Buffer
		require.ErrorContains(t, run(t.Context(), args, strings.NewReader(""), &out, &out), want)
		require.Empty(t, out.String())
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	require.Error(t, run(t.Context(), []string{"-h"}, nil, &out, &out))
	require.Contains(t, out.String(), "usage: inject [flags] [file ...]")
}
