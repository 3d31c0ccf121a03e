package repository

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

// TestImporterVersions builds a program that uses layer, resolve and balance next to old versions
// of other libraries. This module must not raise these versions. Only oteltower's module requires
// OpenTelemetry, so any version must do: here it is a module without code.
func TestImporterVersions(t *testing.T) {
	old := map[string]string{
		"github.com/prometheus/client_golang": "v1.21.1",
		"k8s.io/client-go":                    "v0.36.2",
		"go.opentelemetry.io/otel":            "v1.20.0",
	}
	m := newImporter(t, "replace go.opentelemetry.io/otel => ./otel\n")
	for path, version := range old {
		m.requirements += "require " + path + " " + version + "\n"
	}
	m.write("otel/go.mod", "module go.opentelemetry.io/otel\n\ngo 1.20\n")
	m.write("otel/otel.go", "package otel\n")
	sum, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	m.write("go.sum", string(sum))
	m.writeModule()
	m.imports("github.com/prometheus/client_golang/prometheus", "go.opentelemetry.io/otel", "k8s.io/client-go/util/homedir",
		module+"/balance", module+"/layer", module+"/resolve")
	offline := []string{"GOFLAGS=-mod=mod", "GOPROXY=off"}
	m.run(offline, "build", ".")
	versions := m.run(offline, append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}, slices.Collect(maps.Keys(old))...)...)
	for path, version := range old {
		assert.Contains(t, strings.Split(versions, "\n"), path+" "+version)
	}
}

// TestImporterTidy tidies and builds modules that use this module's packages together with a
// library that requires genproto's packages. The libraries are used in their newest and in old
// versions. The import of this module is added before, after or together with the library's,
// because "go mod tidy" keeps versions that it has already chosen.
func TestImporterTidy(t *testing.T) {
	const (
		exporter = "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
		gateway  = "github.com/grpc-ecosystem/grpc-gateway/v2"
	)
	for name, tt := range map[string]struct {
		ours     string
		packages []string
		versions string // the module's requirements before its first import
	}{
		"OTLP exporter":      {"balance", []string{exporter}, ""},
		"old OTLP exporter":  {"balance", []string{exporter}, "require " + exporter + " v1.24.0\n"},
		"grpc-gateway":       {"balance", []string{gateway + "/runtime"}, ""},
		"old grpc-gateway":   {"httpclient", []string{gateway + "/runtime"}, "require " + gateway + " v2.7.0\n"},
		"grpc/xds":           {"layer/grpclayer", []string{"google.golang.org/grpc/xds"}, ""},
		"old client-go":      {"resolve/k8s", []string{"k8s.io/client-go/kubernetes"}, "require k8s.io/client-go v0.24.0\n"},
		"old client-go only": {"balance", []string{"k8s.io/client-go/rest"}, "require k8s.io/client-go v0.24.0\n"},
		"metrics":            {"instrument/oteltower", []string{exporter}, ""},
		"all":                {"instrument/promtower", []string{exporter, gateway + "/runtime", "google.golang.org/grpc/xds", "k8s.io/client-go/kubernetes"}, ""},
	} {
		all := append([]string{module + "/" + tt.ours}, tt.packages...)
		for order, steps := range map[string][][]string{
			"gotower first": {all[:1], all},
			"gotower last":  {tt.packages, all},
			"together":      {all},
		} {
			t.Run(name+"/"+order, func(t *testing.T) {
				m := newImporter(t, tt.versions)
				m.writeModule()
				for _, imports := range steps {
					m.imports(imports...)
					m.run(nil, "mod", "tidy")
				}
				m.run(nil, "build", ".")
			})
		}
	}
}

// importer is a module in a temporary directory that imports this module.
type importer struct {
	*testing.T

	dir          string
	requirements string // further lines of go.mod
}

// newImporter returns a module without files. It skips the test in the short form, because building
// another module's program takes long.
func newImporter(t *testing.T, requirements string) *importer {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("needs GOTOWER_TESTS=full, because it builds another module")
	}
	return &importer{t, t.TempDir(), requirements}
}

func (m *importer) write(name, text string) {
	m.Helper()
	file := filepath.Join(m.dir, name)
	require.NoError(m, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(m, os.WriteFile(file, []byte(text), 0o600))
}

// writeModule writes go.mod with this repository's modules replaced by the local ones.
func (m *importer) writeModule() {
	m.Helper()
	root, err := os.Getwd()
	require.NoError(m, err)
	m.write("go.mod", "module importer.test\n\ngo 1.26.0\n\n"+
		"require "+module+" v0.0.0\nreplace "+module+" => "+root+"\n"+
		"replace "+module+"/instrument/oteltower => "+filepath.Join(root, "instrument/oteltower")+"\n"+m.requirements)
}

// imports writes the module's package, which imports the given packages.
func (m *importer) imports(paths ...string) {
	m.Helper()
	m.write("importer.go", "package importer\n\nimport (\n\t_ \""+strings.Join(paths, "\"\n\t_ \"")+"\"\n)\n")
}

// run runs the go command in the module, with environ in addition to the environment, and returns
// its output.
func (m *importer) run(environ []string, args ...string) string {
	m.Helper()
	cmd := exec.CommandContext(m.Context(), "go", args...)
	cmd.Dir = m.dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), environ...)
	out, err := cmd.CombinedOutput()
	require.NoError(m, err, "go %v\n%s", args, out)
	return strings.TrimSpace(string(out))
}
