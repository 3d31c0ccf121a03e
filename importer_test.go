package gotower_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestImporterVersions builds a program that uses layer, resolve and balance beside old
// versions of other libraries. This module must not raise these versions. OpenTelemetry is
// required by the module of oteltower only, so that it may be of any version: here it is a
// module without code.
func TestImporterVersions(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("needs GOTOWER_TESTS=full, because it builds a program of another module")
	}
	old := map[string]string{
		"github.com/prometheus/client_golang": "v1.21.1",
		"k8s.io/client-go":                    "v0.36.2",
		"go.opentelemetry.io/otel":            "v1.20.0",
	}
	root, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	mod := "module importer.test\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n"
	for path, version := range old {
		mod += "require " + path + " " + version + "\n"
	}
	write("go.mod", mod+"replace "+module+" => "+root+"\nreplace go.opentelemetry.io/otel => ./otel\n")
	write("otel/go.mod", "module go.opentelemetry.io/otel\n\ngo 1.20\n")
	write("otel/otel.go", "package otel\n")
	sum, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	write("go.sum", string(sum))
	write("main.go", `package main

import (
	_ "github.com/prometheus/client_golang/prometheus"
	_ "go.opentelemetry.io/otel"
	_ "k8s.io/client-go/util/homedir"

	_ "github.com/gotower/gotower/balance"
	_ "github.com/gotower/gotower/layer"
	_ "github.com/gotower/gotower/resolve"
)

func main() {}
`)
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v\n%s", args, out)
		return strings.TrimSpace(string(out))
	}
	run("build", "-o", os.DevNull, ".")
	versions := run(append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}, slices.Collect(maps.Keys(old))...)...)
	for path, version := range old {
		assert.Contains(t, strings.Split(versions, "\n"), path+" "+version)
	}
}
