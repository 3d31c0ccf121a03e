package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/install/manifest"
)

// The Dockerfile ends with a distroless image without root, and builds the programs of the
// manifests. One of its images has the programs that linkerd's chart runs.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	stages := strings.Split(string(text), "\nFROM ")[1:]
	require.Len(t, stages, 5)
	for _, program := range []string{"linkerd2-proxy-init", "linkerd2-proxy-identity", "linkerd-await"} {
		require.Contains(t, stages[2], " /usr/lib/linkerd/"+program)
	}
	last := stages[4]
	require.Contains(t, string(text), "ARG BASE=gcr.io/distroless/static-debian12:nonroot\n")
	require.True(t, strings.HasPrefix(last, "${BASE}\n"))
	require.Contains(t, last, "\nUSER 65532:65532\n")
	require.NotContains(t, last, "RUN ")
	require.Contains(t, stages[1], "/out/init /init\n")
	for _, program := range manifest.Programs() {
		source, err := os.ReadFile("../" + program + "/main.go")
		require.NoError(t, err)
		require.Contains(t, string(source), "\npackage main\n")
	}
}

// The build command of the Dockerfile builds static programs, which accept the flags in the
// manifests.
func TestDockerfileBuild(t *testing.T) {
	full(t)
	text, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindStringSubmatch(string(text))
	require.NotNil(t, build)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(build[1], "/out/", dir+"/", 1))
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	ran := map[string]bool{}
	for _, args := range [][]string{nil, {"-namespace", "mesh", "-cluster-domain", "example.org", "-ha"}} {
		for _, o := range parse(t, render(t, args...)) {
			for _, c := range append(o.Spec.Template.Spec.Containers, o.Spec.Template.Spec.InitContainers...) {
				program := filepath.Join(dir, c.Command[0])
				out, err := exec.CommandContext(t.Context(), program, append(c.Args, "-h")...).CombinedOutput()
				require.NoError(t, err, "%s: %s", c.Command, out)
				ran[strings.TrimPrefix(c.Command[0], "/")] = true
			}
		}
	}
	for _, name := range manifest.Programs() {
		require.True(t, ran[name], name)
		if runtime.GOOS == "linux" {
			f, err := elf.Open(filepath.Join(dir, name))
			require.NoError(t, err)
			libraries, err := f.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, libraries, "the base image has no libraries")
			require.NoError(t, f.Close())
		}
	}
}
