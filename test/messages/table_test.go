package messages

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const page = "../../layer/httplayer/MESSAGES.md"

var update = flag.Bool("update", false, "write the tables of "+page+" instead of comparing them")

// linkerd2-proxy's column is only measured by -update with GOTOWER_HYPER, and otherwise kept.
var columns = []string{ours, nginx, haproxy, hyper}

// TestTable compares MESSAGES.md's tables with what the proxies do. If nginx or haproxy is missing,
// it only compares this module's column.
func TestTable(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	got := string(text)
	l := newLanes(t, 1)[0]
	got = replaceBlock(t, got, "requests", func(known map[string][]string) string {
		return table(known, requestRows, func(r row, proxy string) (string, bool) {
			through, ok := l[proxy]
			if !ok {
				return "", false
			}
			return requestCell(r, sendRequest(t, through, message{input: []byte(r.input + sentinel)})), true
		})
	})
	got = replaceBlock(t, got, "responses", func(known map[string][]string) string {
		return table(known, responseRows, func(r row, proxy string) (string, bool) {
			through, ok := l[proxy]
			if !ok {
				return "", false
			}
			return responseCell(r, sendResponse(t, through, message{input: []byte(r.input), method: "GET", end: closes})), true
		})
	})
	got = replaceBlock(t, got, "exceptions", func(map[string][]string) string {
		var b strings.Builder
		for _, e := range exceptions {
			if e.reason != "" {
				fmt.Fprintf(&b, "- %s: %s\n", strings.ToUpper(e.name[:1])+e.name[1:], e.reason)
			}
		}
		return b.String()
	})
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(got), 0o644))
		return
	}
	assert.Equal(t, string(text), got, "write the page again: go test -run TestTable ./test/messages/ -update")
}

// replaceBlock replaces the lines between two comments with the block's name. It passes the lines'
// cells to lines, by the first cell.
func replaceBlock(t *testing.T, text, name string, lines func(known map[string][]string) string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)(<!-- " + name + " -->\n)(.*?)(<!-- end -->\n)").FindStringSubmatchIndex(text)
	require.NotNil(t, block, name)
	oldCells := make(map[string][]string)
	for line := range strings.Lines(text[block[4]:block[5]]) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | "); len(cells) > 1 {
			oldCells[strings.TrimSpace(cells[0])] = cells[1:]
		}
	}
	return text[:block[3]] + lines(oldCells) + text[block[6]:]
}

// table returns a table's lines. Cells that cannot be measured here are kept.
func table(known map[string][]string, rows []row, cell func(r row, proxy string) (string, bool)) string {
	var b strings.Builder
	b.WriteString("| input | gotower | nginx | haproxy | linkerd2-proxy |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		b.WriteString("| " + r.title)
		for i, proxy := range columns {
			text, ok := cell(r, proxy)
			if cells := known[r.title]; !ok && i < len(cells) {
				text = strings.TrimSpace(cells[i])
			}
			b.WriteString(" | " + text)
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// requestCell describes what a proxy did with r's request.
func requestCell(r row, f forwarded) string {
	expected := max(r.then, 1)
	if len(f.requests) < expected || f.err != nil {
		switch last := len(f.statuses) - 1; {
		case f.err != nil:
			return "as received"
		case f.silent:
			return "no answer"
		case last < 0:
			return "closes"
		default:
			return fmt.Sprint(f.statuses[last])
		}
	}
	return describe(r, f.requests[expected-1])
}

// responseCell describes what a proxy did with r's response.
func responseCell(r row, f received) string {
	switch {
	case f.silent:
		return "no answer"
	case len(f.output) == 0:
		return "closes"
	case f.err != nil:
		return "as received"
	case f.rejects():
		return fmt.Sprint(f.Status)
	case !f.Whole:
		return "breaks off"
	}
	return describe(r, f.meaning)
}

// describe describes the element of a forwarded message.
func describe(r row, m meaning) string {
	switch got := r.element(m); {
	case got == r.want:
		return "yes"
	case got == "", got == "(left out)":
		return "without it"
	case len(got) > 40:
		return "changed"
	default:
		return fmt.Sprintf("as `%s`", strings.Trim(fmt.Sprintf("%+q", got), `"`))
	}
}
