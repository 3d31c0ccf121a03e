package top

import (
	"strings"
	"unicode/utf8"

	"github.com/gotower/gotower/tap/tappb"
)

// searchText returns the text in the row r that the table's filter searches: its names, method,
// path, route and authority.
func searchText(r *tappb.Row) string {
	return strings.Join([]string{r.GetSource(), r.GetDestination(), r.GetMethod(), r.GetPath(), r.GetRoute(), r.GetAuthority()}, "\n")
}

// write handles a key that the user presses while typing the filter. typed is
// the text that the key adds, or "" for a key without text, such as an arrow.
func (t *table) write(key, typed string) {
	switch key {
	case "enter":
		t.typing = false
	case "esc":
		t.typing = false
		t.filter = ""
	case "backspace":
		// A character may have several bytes.
		_, n := utf8.DecodeLastRuneInString(t.filter)
		t.filter = t.filter[:len(t.filter)-n]
	case "ctrl+u":
		t.filter = ""
	default:
		t.paste(typed)
	}
}

// paste appends s to the filter if the user is typing the filter. It ignores s if the
// filter would become too long.
func (t *table) paste(s string) {
	const most = 200
	// Longer texts than most are pasted by mistake.
	if t.typing && len(t.filter)+len(s) <= most {
		t.filter += strings.ReplaceAll(s, "\n", " ")
	}
}
