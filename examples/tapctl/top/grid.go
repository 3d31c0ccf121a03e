package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// grid is a table on a screen: a line of titles above lines of cells.
type grid struct {
	columns []gridColumn
	cells   [][]cell
}

// gridColumn is a column with its title and its limits of width.
type gridColumn struct {
	title string
	right bool // the cells are aligned on the right
	width int  // least width, even if all cells are shorter
	least int  // if not 0, the column may become narrower than its cells, but not than least or width
	mark  rune // shown after the title, unless it is 0
}

// cell is one cell's text, with a style that may differ from that of its line.
type cell struct {
	text  string
	style style
}

// head returns the column's title, with its mark if there is one.
func (c gridColumn) head() string {
	if c.mark != 0 {
		return c.title + string(c.mark)
	}
	return c.title
}

// widths returns each column's width. If the grid is wider than width, it makes columns narrower,
// the widest first. A column keeps at least the larger of its least and width. If least is 0, the
// column is not made narrower. If width is 0, the grid may have any width.
func (g *grid) widths(width int) []int {
	widths := make([]int, len(g.columns))
	// One space separates columns.
	total := max(0, len(widths)-1)
	for i, c := range g.columns {
		widths[i] = max(c.width, text.Width(c.head()))
		for _, row := range g.cells {
			widths[i] = max(widths[i], text.Width(row[i].text))
		}
		total += widths[i]
	}
	// Make the widest column one narrower at a time, so that the remaining ones become similar.
	for width > 0 && total > width {
		widest := -1
		for i, c := range g.columns {
			if c.least > 0 && widths[i] > max(c.least, c.width) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // the user can scroll
		}
		widths[widest]--
		total--
	}
	return widths
}

// window is the part of a grid that is visible on the screen.
type window struct {
	width, height int // in columns and lines of the screen, including the titles
	left          int // columns that are scrolled out to the left
	first         int // first row
	selected      int // selected row; -1 means no row
}

// lines returns the part of g that is visible in w, as lines. The first line contains the column
// titles.
func (g *grid) lines(w window) []string {
	widths := g.widths(w.width)
	head := make([]cell, len(g.columns))
	for i, c := range g.columns {
		head[i] = cell{text: c.head()}
	}
	// The titles use one line of the height.
	lines := []string{heading.of(g.line(head, widths, w, plain))}
	for i := w.first; i < len(g.cells) && len(lines) < w.height; i++ {
		// The cursor's row is shown inverted.
		base := plain
		if i == w.selected {
			base = selection
		}
		lines = append(lines, g.line(g.cells[i], widths, w, base))
	}
	return lines
}

// span returns the number of terminal columns that the grid takes on a screen with the given
// width. The result is larger than width if the columns cannot become narrow enough.
func (g *grid) span(width int) int {
	total := max(0, len(g.columns)-1)
	for _, w := range g.widths(width) {
		total += w
	}
	return total
}

// line returns the visible part of one line in the grid. cells and widths are the line's cells
// and their widths, and base is its style.
func (g *grid) line(cells []cell, widths []int, w window, base style) string {
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteByte(' ')
		}
		// Each cell is shortened or padded to the column's width.
		s := text.Pad(text.Fit(c.text, widths[i]), widths[i], g.columns[i].right)
		if c.style != plain {
			s = c.style.within(s, base)
		}
		b.WriteString(s)
	}
	// The line is cut after it is complete, because styles must not be cut.
	line := b.String()
	if w.width > 0 {
		line = ansi.Cut(line, w.left, w.left+w.width)
	}
	if base == plain {
		return strings.TrimRight(line, " ")
	}
	// A selected line is inverted over the whole width.
	return base.of(text.Pad(line, w.width, false)) // spaces at the end
}
