// Package guides has no code. Its tests keep the guides true.
package guides

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trimmed returns the lines of text without their indentation.
func trimmed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimSpace(line) + "\n")
	}
	return out.String()
}

// anchors returns the fragments by which links lead to the headings of a page.
func anchors(page string) []string {
	var list []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		words := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		list = append(list, strings.ReplaceAll(words, " ", "-"))
	}
	return list
}

// TestGuides checks that each block of Go is a part of a Go file of this module, which is compiled and
// run by its own tests, that each link leads to a file or a heading, and that each test it names exists.
func TestGuides(t *testing.T) {
	var code strings.Builder
	for _, root := range []string{"../layer", "../resolve", "../balance", "../httpclient", "../examples/hello"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".go" {
				text, err := os.ReadFile(path)
				code.WriteString(trimmed(string(text)))
				return err
			}
			return err
		}))
	}
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
			found := strings.Contains(code.String(), trimmed(block[1]))
			assert.True(t, found, "%s: no Go file has these lines:\n%s", page, block[1])
		}
		prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(string(text), "")
		for _, name := range regexp.MustCompile("`((?:Test|Example)[A-Z_]\\w*)`").FindAllStringSubmatch(prose, -1) {
			assert.Contains(t, code.String(), "func "+name[1]+"(", "%s names a test that does not exist", page)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(prose, -1) {
			if strings.HasPrefix(link[1], "https://") {
				continue
			}
			file, heading, _ := strings.Cut(link[1], "#")
			if file == "" {
				file = page
			}
			_, err := os.Stat(file)
			assert.NoError(t, err, "%s", page)
			if heading != "" {
				linked, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.Contains(t, anchors(string(linked)), heading, "%s: %s has no such heading", page, file)
			}
		}
	}
}
