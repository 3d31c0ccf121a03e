// Package h2spectest runs h2spec, a conformance test for HTTP/2 servers. It also finds other
// programs that scripts in .ci build.
package h2spectest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cases is how many cases h2spec runs. All of them must pass.
const cases = 145

// Run runs all cases against each named server, in parallel. It skips the test unless
// GOTOWER_TESTS=full is set and .ci/h2spec.sh has built the program.
func Run(t *testing.T, servers map[string]Server) {
	t.Helper()
	program := Program(t, "h2spec", "h2spec")
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := runH2Spec(t, program, s.Addr, s.args()...)
			passed, total, missed := report.count()
			// Some cases fail if connections are closed at the wrong moment, so those that failed run again.
			for _, m := range missed {
				if assert.True(t, passesAgain(t, program, s.Addr, m, s.args()), "failed: %s: %s", m.name, m.text) {
					passed++
				}
			}
			t.Logf("h2spec %s: %d of %d", name, passed, total)
			assert.Equal(t, cases, total)
		})
	}
}

// Server says where a server listens, and whether it uses TLS.
type Server struct {
	Addr string
	TLS  bool
}

// args returns the arguments of h2spec for the server.
func (s Server) args() []string {
	if s.TLS {
		return []string{"--tls", "--insecure"}
	}
	return nil
}

// passesAgain runs a case alone, up to three times. If a connection is closed with unread input,
// the TCP reset may overtake the last frames, and h2spec reports an error for a server that is
// right.
func passesAgain(t *testing.T, program, addr string, m h2specMiss, args []string) bool {
	t.Helper()
	// h2spec names a case http2/SECTION/NUMBER.
	selector := "http2/" + strings.Replace(m.name, "#", "/", 1)
	for range 3 {
		report := runH2Spec(t, program, addr, slices.Concat(args, []string{selector})...)
		if passed, _, missed := report.count(); passed == 1 && len(missed) == 0 {
			t.Logf("passed when it was tried again: %s: %s", m.name, m.text)
			return true
		}
	}
	return false
}

// Program returns the path of a program that .ci/SCRIPT.sh has built. It skips the test unless
// GOTOWER_TESTS=full is set and the program exists. Programs are usually in gotower-SCRIPT in the
// user's cache; the environment variable GOTOWER_SCRIPT names another directory.
func Program(t *testing.T, script, name string) string {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it runs another program: set GOTOWER_TESTS=full")
	}
	variable := "GOTOWER_" + strings.ToUpper(script)
	dir := os.Getenv(variable)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("the directory for caches is unknown: set %s to where .ci/%s.sh left its programs", variable, script)
		}
		dir = filepath.Join(cache, "gotower-"+script)
	}
	program := filepath.Join(dir, name)
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) { //nolint:gosec // the user chooses the directory
		t.Skipf("no %s in %s: run .ci/%s.sh, which builds it", name, dir, script)
	}
	return program
}

// h2specReport is what h2spec writes in JUnit format.
type h2specReport struct {
	Suites []struct {
		ID    string `xml:"id,attr"`
		Cases []struct {
			Package string    `xml:"package,attr"`
			What    string    `xml:"classname,attr"`
			Failure *string   `xml:"failure"`
			Error   *string   `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// runH2Spec runs h2spec against addr with further arguments, and returns its report.
func runH2Spec(t *testing.T, program, addr string, args ...string) (report h2specReport) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "report.xml")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args = slices.Concat([]string{"--host", host, "--port", port, "--timeout", "3", "--junit-report", file}, args)
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput() //nolint:gosec // it is h2spec
	// The exit status only tells that some cases failed, which the report contains too.
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		require.NoError(t, err, "%s", out)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err, "%s", out)
	require.NoError(t, xml.Unmarshal(text, &report))
	return report
}

// h2specMiss is a case that failed: its section and number, and h2spec's message.
type h2specMiss struct{ name, text string }

// count returns how many cases have passed, how many there are, and those that failed.
func (r h2specReport) count() (passed, total int, missed []h2specMiss) {
	for _, s := range r.Suites {
		for i, c := range s.Cases {
			total++
			if c.Failure == nil && c.Error == nil && c.Skipped == nil {
				passed++
				continue
			}
			// Cases have no name of their own, but a number in their section.
			m := h2specMiss{name: fmt.Sprintf("%s#%d", strings.TrimPrefix(c.Package, "http2/"), i+1), text: c.What}
			for _, text := range []*string{c.Failure, c.Error} {
				if text != nil {
					m.text += ": " + *text
				}
			}
			missed = append(missed, m)
		}
	}
	return passed, total, missed
}
