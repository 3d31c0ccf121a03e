package top

import (
	"io"
	"strings"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap/tappb"
)

// Write prints the rows as a table without truncating cells.
func Write(w io.Writer, rows []*tappb.Row, c Columns) error {
	if c.HideSources {
		rows = withoutSources(rows)
	}
	g := &grid{}
	all := columns(shown{hideSources: c.HideSources, routes: c.Routes, direction: bothDirections(rows), wide: c.Wide})
	for _, c := range all {
		g.columns = append(g.columns, gridColumn{title: c.title, right: c.right, width: c.width})
	}
	for _, r := range rows {
		cells := make([]cell, 0, len(all))
		for _, c := range all {
			cells = append(cells, cell{text: c.value(r)})
		}
		g.cells = append(g.cells, cells)
	}
	var b strings.Builder
	widths := g.widths(0)
	head := make([]cell, len(g.columns))
	for i, c := range g.columns {
		head[i] = cell{text: c.title}
	}
	for _, cells := range append([][]cell{head}, g.cells...) {
		b.WriteString(g.line(cells, widths, window{}, plain) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// bothDirections reports whether rows has inbound and outbound requests.
func bothDirections(rows []*tappb.Row) bool {
	for _, r := range rows {
		if r.GetDirection() != rows[0].GetDirection() {
			return true
		}
	}
	return false
}

// row is a row as JSON, with the columns of `linkerd viz top`. Times are in
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

// wideRow is a row as JSON with all columns.
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

// WriteJSON prints the rows as a JSON array of objects. It omits rows of which no request
// has ended.
func WriteJSON(w io.Writer, rows []*tappb.Row, c Columns) error {
	if c.HideSources {
		rows = withoutSources(rows)
	}
	out := []any{}
	for _, r := range rows {
		if r.GetCount() == 0 {
			continue
		}
		narrow := row{
			r.GetSource(), r.GetDestination(), r.GetMethod(), r.GetPath(), r.GetCount(),
			milliseconds(r.GetBest()), milliseconds(r.GetWorst()), milliseconds(r.GetLast()),
			float64(r.GetSuccesses()) / float64(r.GetCount()),
		}
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
