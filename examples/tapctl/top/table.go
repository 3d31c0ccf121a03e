package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap/tappb"
)

// table is the screen that shows the table of rows.
type table struct {
	title   string
	columns Columns
	answer  *tappb.TopResponse
	rows    []*tappb.Row // rows of answer, or their sums over sources

	sort    string // the column's title; "" keeps the order in answer
	reverse bool   // the rows are sorted in the reverse order
	filter  string
	typing  bool               // the filter is being typed
	paused  *tappb.TopResponse // the latest answer, which is not shown during a pause; nil without a pause
	cursor  cursor
	left    int  // columns that are scrolled out to the left
	chosen  bool // whether the user has selected Columns.Wide
}

// newTable returns the table for c, without rows.
func newTable(c Config) table {
	return table{title: text.Clean(c.Title), columns: c.Columns, chosen: c.Wide, sort: "Count"}
}

// take replaces the rows with answer's. While the table is paused, it only stores answer, which
// is shown when the pause ends.
func (t *table) take(answer *tappb.TopResponse) {
	if t.paused != nil {
		t.paused = answer
		return
	}
	t.answer = answer
	t.refresh()
}

// refresh computes the rows to show from the last answer.
func (t *table) refresh() {
	t.rows = t.answer.GetRows()
	if t.columns.HideSources {
		t.rows = withoutSources(t.rows)
	}
}

// empty reports whether no row is visible.
func (t *table) empty() bool { return len(t.visible(0)) == 0 }

// all returns the table's columns for a screen of this width: those of the wide or the narrow
// table if the user has chosen one, and otherwise the wide ones if width is at least 120.
func (t *table) all(width int) []column {
	wide := t.columns.Wide
	// A wide table needs about 120 columns.
	if !t.chosen {
		wide = width >= 120
	}
	return columns(shown{
		hideSources: t.columns.HideSources, routes: t.columns.Routes, direction: bothDirections(t.rows), wide: wide,
	})
}

// visible returns the rows that match the filter, in the order that the user selected.
func (t *table) visible(width int) []*tappb.Row {
	pattern := strings.ToLower(t.filter)
	rows := make([]*tappb.Row, 0, len(t.rows))
	for _, r := range t.rows {
		if pattern == "" || strings.Contains(strings.ToLower(searchText(r)), pattern) {
			rows = append(rows, r)
		}
	}
	// The user may have sorted by a column that the screen is too narrow to show.
	for _, c := range t.all(max(width, 1000)) {
		if c.title == t.sort {
			sorted(rows, &c, t.reverse)
		}
	}
	return rows
}

// keys returns the rows' keys, for the cursor.
func keys(rows []*tappb.Row) []string {
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i] = key(r)
	}
	return all
}

// selected returns the row under the cursor, or nil if the table is empty. height is how many
// lines the table takes, including its titles.
func (t *table) selected(height int) *tappb.Row {
	rows := t.visible(0)
	t.cursor.place(keys(rows), height-1)
	if len(rows) == 0 {
		return nil
	}
	return rows[t.cursor.at]
}

// press handles a key. height is how many lines the table takes, including its titles.
func (t *table) press(key string, height int) {
	if rows, ok := step(key, height-1); ok {
		t.cursor.move(rows, keys(t.visible(0)))
		return
	}
	if columns, ok := sideways(key); ok {
		t.left = max(0, t.left+columns) // lines sets the upper limit
		return
	}
	switch key {
	case "p", "space":
		t.pause()
	case "/":
		t.typing = true
	case "esc":
		t.filter = ""
	case "h":
		t.columns.HideSources = !t.columns.HideSources
		t.refresh()
	case "w":
		t.columns.Wide = !t.columns.Wide
		t.chosen = true
	case "r":
		t.reverse = !t.reverse
	case "1", "2", "3", "4", "5", "6", "7", "8", "9":
		t.sortBy(int(key[0] - '1'))
	}
}

// pause stops the updates, or shows the latest answer when the pause ends.
func (t *table) pause() {
	if t.paused == nil {
		t.paused = t.answer
		// paused must not be nil during a pause, even before the first answer.
		if t.paused == nil {
			t.paused = &tappb.TopResponse{}
		}
		return
	}
	t.answer = t.paused
	t.paused = nil
	t.refresh()
}

// sortBy sorts the table by column n, counted from 0. The count leaves out the columns that depend
// on the rows and on the width, so that a key does not change its meaning with them. A second call
// for the same column reverses the order.
func (t *table) sortBy(n int) {
	all := columns(shown{hideSources: t.columns.HideSources, routes: t.columns.Routes})
	if n >= len(all) {
		return
	}
	t.reverse = t.sort == all[n].title && !t.reverse
	t.sort = all[n].title
}

// lines returns what is on the screen. The body takes at most height lines, including the titles.
func (t *table) lines(width, height int) drawn {
	rows := t.visible(width)
	t.cursor.place(keys(rows), height-1)
	g := t.grid(rows, width)
	// The limit depends on the content, so it is applied here and not in press.
	t.left = max(0, min(t.left, g.span(width)-width))
	body := g.lines(window{width: width, height: height, left: t.left, first: t.cursor.first, selected: t.cursor.at})
	help := []string{"q quit", "? help", "↑↓ select", "enter requests", "/ filter", "p pause", "1-9 sort", "a d scroll", "w more columns"}
	return drawn{t.title, t.counts(rows), help, body}
}

// grid returns the table's rows as a grid for a screen of this width.
func (t *table) grid(rows []*tappb.Row, width int) *grid {
	g := &grid{}
	all := t.all(width)
	for _, c := range all {
		column := gridColumn{title: c.title, right: c.right, width: c.tight, least: c.least}
		// A narrow screen has no room for the long title.
		if c.title == "Success Rate" && width < 120 {
			column.title = "Success"
			column.width = 7
		}
		if c.title == t.sort {
			// The mark shows the column by which the table is sorted, and the direction.
			column.mark = '▾'
			if t.reverse {
				column.mark = '▴'
			}
		}
		g.columns = append(g.columns, column)
	}
	for _, r := range rows {
		cells := make([]cell, len(all))
		for i, c := range all {
			cells[i] = cell{text: c.value(r)}
		}
		// The success rate is always the last column.
		cells[len(cells)-1].style = successStyle(r)
		g.cells = append(g.cells, cells)
	}
	return g
}

// successStyle returns yellow for a few failures, and red for more than 5 %.
func successStyle(r *tappb.Row) style {
	switch n, good := r.GetCount(), r.GetSuccesses(); {
	case n == good:
		return plain
	case float64(good) >= 0.95*float64(n):
		return some
	}
	return failing
}

// counts returns the second line on the screen, with the sums over the given rows.
func (t *table) counts(rows []*tappb.Row) string {
	if t.answer == nil {
		return ""
	}
	// The sums are those of the visible rows.
	var ended, good, open uint64
	var rate float64
	for _, r := range rows {
		ended += r.GetCount()
		good += r.GetSuccesses()
		open += r.GetOpen()
		rate += r.GetRate()
	}
	var parts []string
	if t.paused != nil {
		parts = append(parts, "PAUSED")
	}
	if t.filter == "" {
		parts = append(parts, text.Plural(uint64(len(rows)), "row"))
	} else {
		// With a filter, the number of all rows shows how many are hidden.
		parts = append(parts, fmt.Sprintf("%d of %s with %s", len(rows), text.Plural(uint64(len(t.rows)), "row"), text.Clean(t.filter)))
	}
	parts = append(parts, text.Plural(ended, "request"), text.Rate(rate)+"/s")
	if ended > 0 {
		parts = append(parts, text.Percent(good, ended)+" good")
	}
	parts = append(parts, fmt.Sprintf("%d open", open), "in "+t.answer.GetSpan().AsDuration().Round(time.Second).String())
	if n := t.answer.GetOmitted(); n > 0 {
		parts = append(parts, text.Plural(n, "row")+" left out")
	}
	return strings.Join(parts, "  ")
}
