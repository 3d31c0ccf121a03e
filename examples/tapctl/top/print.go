package top

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap/tappb"
)

// Write writes the rows to w as a table. It does not shorten the texts.
func Write(w io.Writer, rows []*tappb.Row, c Columns) error { return write(w, rows, c, 0, 0) } // no limit

// WriteScreen writes the rows to out as a table. On a terminal, the table fits the screen: it
// shows shorter texts and the first rows only. Elsewhere WriteScreen writes the same as [Write].
func WriteScreen(out *os.File, rows []*tappb.Row, c Columns) error {
	width, height, err := term.GetSize(int(out.Fd()))
	// Without a terminal, there is no limit.
	if err != nil {
		width = 0
		height = 0
	}
	return write(out, rows, c, width, height)
}

// write writes the rows to w as a table that fits a screen of this size. A width or height of 0
// means no limit.
func write(w io.Writer, rows []*tappb.Row, c Columns, width, height int) error {
	if c.HideSources {
		rows = withoutSources(rows)
	}
	g := &grid{}
	// more is the number of rows that do not fit.
	more := 0
	if most := max(1, height-3); height > 0 && len(rows) > most { // titles, the number of other rows, prompt
		more = len(rows) - most
		rows = rows[:most]
	}
	// The column with the direction is only useful for rows of both directions.
	all := columns(shown{hideSources: c.HideSources, routes: c.Routes, direction: bothDirections(rows), wide: c.Wide})
	for _, c := range all {
		column := gridColumn{title: c.title, right: c.right, width: c.width}
		// On a screen, columns may become narrower than in a printed table.
		if width > 0 {
			column.width = c.tight
			column.least = c.least
		}
		g.columns = append(g.columns, column)
	}
	for _, r := range rows {
		cells := make([]cell, 0, len(all))
		for _, c := range all {
			cells = append(cells, cell{text: c.value(r)})
		}
		g.cells = append(g.cells, cells)
	}
	var b strings.Builder
	widths := g.widths(width)
	head := make([]cell, len(g.columns))
	for i, c := range g.columns {
		head[i] = cell{text: c.title}
	}
	// The titles are a line like any other.
	for _, cells := range append([][]cell{head}, g.cells...) {
		b.WriteString(g.line(cells, widths, window{width: width}, plain) + "\n")
	}
	if more > 0 {
		fmt.Fprintf(&b, "%d more rows\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// bothDirections reports whether rows contains both inbound and outbound rows.
func bothDirections(rows []*tappb.Row) bool {
	for _, r := range rows {
		if r.GetDirection() != rows[0].GetDirection() {
			return true
		}
	}
	return false
}

// row is a row as JSON, with the columns of `linkerd viz top`. Durations are in
// milliseconds.
type row struct {
	Source      string  `json:"source"`
	Destination string  `json:"destination"`
	Method      string  `json:"method"`
	Path        string  `json:"path"`
	Count       uint64  `json:"count"`
	Best        float64 `json:"best_ms"`
	Worst       float64 `json:"worst_ms"`
	Last        float64 `json:"last_ms"`
	SuccessRate float64 `json:"success_rate"`
}

// wideRow is a row as JSON with all columns of the table.
type wideRow struct {
	row

	Route     string  `json:"route"`
	Authority string  `json:"authority"`
	Direction string  `json:"direction"`
	Open      uint64  `json:"open"`
	Rate      float64 `json:"rps"`
	P50       float64 `json:"p50_ms"`
	P95       float64 `json:"p95_ms"`
	P99       float64 `json:"p99_ms"`
}

// WriteJSON writes the rows to w as a JSON array. Rows without any ended request are omitted.
func WriteJSON(w io.Writer, rows []*tappb.Row, c Columns) error {
	if c.HideSources {
		rows = withoutSources(rows)
	}
	out := []any{}
	for _, r := range rows {
		// Without an ended request, latencies and the success rate have no meaning.
		if r.GetCount() == 0 {
			continue
		}
		narrow := row{
			r.GetSource(), r.GetDestination(), r.GetMethod(), r.GetPath(), r.GetCount(),
			milliseconds(r.GetBest()), milliseconds(r.GetWorst()), milliseconds(r.GetLast()),
			float64(r.GetSuccesses()) / float64(r.GetCount()),
		}
		// The narrow form is the format of "linkerd viz top".
		if !c.Wide && !c.Routes {
			out = append(out, narrow)
			continue
		}
		out = append(out, wideRow{
			narrow, r.GetRoute(), r.GetAuthority(), direction(r), r.GetOpen(), r.GetRate(),
			milliseconds(r.GetP50()), milliseconds(r.GetP95()), milliseconds(r.GetP99()),
		})
	}
	return text.WriteJSON(w, out)
}
