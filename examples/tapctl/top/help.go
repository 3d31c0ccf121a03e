package top

import "github.com/charmbracelet/x/ansi"

// helpLines returns the lines of the help screen, which describe the keys. A line is at most
// width columns wide.
func helpLines(width int) []string {
	lines := []string{
		heading.of("rows"),
		"  ↑ ↓ k j  pgup pgdn  g G   select a row",
		"  enter                     its requests, live",
		"  1 … 9                     sort by a column; once more: the other way round",
		"  r                         the other way round",
		"  /                         show what has a word in it; esc shows all again",
		"  p space                   pause, and go on",
		"  a d ← →                   scroll to the sides",
		"  w                         more columns: open requests, rate, quantiles",
		"  h                         without sources: add up what they ask for",
		"",
		heading.of("requests of a row"),
		"  ↑ ↓ k j  pgup pgdn  g G   select a request",
		"  enter                     all that is known of it, and why it went there",
		"  f                         failures only",
		"  p space                   pause, and go on",
		"  esc                       back",
		"",
		"  q ctrl-c                  quit",
	}
	// A narrow screen cuts the lines, because wrapped ones would be confusing.
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, width, "…")
	}
	return lines
}
