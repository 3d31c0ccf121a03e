package h2

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// TestH2Spec needs GOTOWER_TESTS=full, and the program that .ci/h2spec.sh builds.
func TestH2Spec(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it takes 20 s: set GOTOWER_TESTS=full")
	}
	dir := os.Getenv("GOTOWER_H2SPEC")
	if dir == "" {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		dir = filepath.Join(cache, "gotower-h2spec")
	}
	program := filepath.Join(dir, "h2spec")
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no h2spec in %s: run .ci/h2spec.sh, which builds it", dir)
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello, h2spec: a body that has some length")
	})
	for name, addr := range map[string]string{
		"handler": serve(t, message.ServerConfig{Exchange: handledBy(h)}).addr,
		"proxy":   proxy(t, standard(t, h), message.ServerConfig{}, ClientConfig{}).addr,
	} {
		t.Run(name, func(t *testing.T) { h2spec(t, program, addr) })
	}
}

func h2spec(t *testing.T, program, addr string) {
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "report.xml")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--host", host, "--port", port, "--timeout", "3", "--junit-report", file).CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		require.NoError(t, err, "%s", out)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err, "%s", out)
	var report struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure *string   `xml:"failure"`
				Error   *string   `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(text, &report))
	passed := 0
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			if assert.True(t, c.Failure == nil && c.Error == nil && c.Skipped == nil, "%s: %s", c.Package, c.Name) {
				passed++
			}
		}
	}
	assert.Equal(t, 145, passed)
}
