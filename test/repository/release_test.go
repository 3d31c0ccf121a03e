package repository

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReleaseVersion checks that oteltower requires the first version in CHANGELOG.md. Both modules
// are tagged on the same commit, see CONTRIBUTING.md.
func TestReleaseVersion(t *testing.T) {
	assert.Equal(t, matched(t, "CHANGELOG.md", `(?m)^## (v\S+)`), requiredByOteltower(t))
}

// requiredByOteltower returns which version of this module oteltower requires.
func requiredByOteltower(t *testing.T) string {
	t.Helper()
	return matched(t, "instrument/oteltower/go.mod", `(?m)^\s`+regexp.QuoteMeta(module)+` (v\S+)$`)
}

// matched returns the first group in the first match of pattern in a file.
func matched(t *testing.T, file, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	match := regexp.MustCompile(pattern).FindSubmatch(text)
	require.NotNil(t, match, "%s has no %s", file, pattern)
	return string(match[1])
}

// TestReleaseImport imports oteltower in a module without replacements, as after a release. A
// directory with both of this repository's modules serves as the module proxy.
func TestReleaseImport(t *testing.T) {
	m := newImporter(t, "")
	version := requiredByOteltower(t)
	proxy := t.TempDir()
	release(t, proxy, module, ".", version)
	release(t, proxy, module+"/instrument/oteltower", "instrument/oteltower", version)
	other, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	cache, proxies, _ := strings.Cut(strings.TrimSpace(string(other)), "\n")
	environ := []string{
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache", "download") + "," + proxies,
		"GOMODCACHE=" + t.TempDir(), "GOFLAGS=-modcacherw", "GONOSUMDB=" + module + "," + module + "/*",
	}
	m.write("go.mod", "module importer.test\n\ngo 1.26.0\n")
	m.imports(module+"/instrument/oteltower", module+"/balance")
	m.run(environ, "get", module+"/instrument/oteltower@latest")
	m.run(environ, "mod", "tidy")
	m.run(environ, "list", "-deps", ".")
	assert.Equal(t, module+" "+version, m.run(environ, "list", "-m", module))
}

// release adds the module in dir to the module proxy in the directory proxy.
func release(t *testing.T, proxy, path, dir, version string) {
	t.Helper()
	target := filepath.Join(proxy, path, "@v")
	require.NoError(t, os.MkdirAll(target, 0o700))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"list": version + "\n", version + ".mod": string(mod), version + ".info": `{"Version":"` + version + `"}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(target, name), []byte(text), 0o600))
	}
	file, err := os.Create(filepath.Join(target, version+".zip"))
	require.NoError(t, err)
	defer file.Close()
	archive := zip.NewWriter(file)
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir() && entry.Type().IsRegular():
			relative, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			w, err := archive.Create(path + "@" + version + "/" + filepath.ToSlash(relative))
			if err != nil {
				return err
			}
			source, err := os.Open(name)
			if err != nil {
				return err
			}
			defer source.Close()
			_, err = io.Copy(w, source)
			return err
		case !entry.IsDir() || name == dir:
			return nil
		}
		_, err = os.Stat(filepath.Join(name, "go.mod"))
		if err == nil || strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // another module, or not part of this one
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, archive.Close())
}
