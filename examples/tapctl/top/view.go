package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// View implements [tea.Model]. It draws the uppermost screen.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "tapctl top"
	return v
}

// body returns how many lines there are for the body, between the header and the errors.
func (m *model) body() int { return max(1, m.height-3-len(m.note())-1-len(m.newsLines())) }

// note returns Config.Note's lines, or nil if there is no room for them.
func (m *model) note() []string {
	lines := strings.Split(m.config.Note, "\n")
	// The note is only shown above the table, and only on a screen that is high enough for both.
	if m.config.Note == "" || m.requests != nil || m.help || m.height < 18+len(lines) {
		return nil
	}
	return lines
}

// drawn is the content of a screen: its title, a line with sums, the keys that it accepts, and
// its body's lines.
type drawn struct {
	title, counts string
	keys, body    []string
}

// lines returns the lines of the whole screen, from the title to the keys.
func (m *model) lines() []string {
	if m.width < 1 || m.height < 1 {
		return nil
	}
	d := m.screen()
	height := m.body()
	lines := append(make([]string, 0, m.height), m.top(d.title), text.Fit(d.counts, m.width))
	lines = append(append(lines, m.note()...), "")
	// The body is filled up, so that the errors and the keys stay at the bottom.
	end := len(lines) + height
	lines = append(lines, d.body[:min(len(d.body), height)]...)
	for len(lines) < end {
		lines = append(lines, "")
	}
	lines = append(lines, m.newsLines()...)
	// While the user types a filter, it replaces the keys.
	if m.table.typing && m.requests == nil && !m.help {
		lines = append(lines, text.Fit("/"+text.Clean(m.table.filter)+"▏", m.width))
	} else {
		lines = append(lines, faint.of(text.Fill(d.keys, m.width)))
	}
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, m.width, "") // no line may wrap
	}
	return lines[max(0, len(lines)-m.height):] // the last lines are the most useful ones
}

// screen returns the uppermost screen: the help, a request, a list of requests, or the table.
func (m *model) screen() drawn {
	// The order is that in which the screens lie on each other.
	switch {
	case m.help:
		return drawn{title: "keys", keys: []string{"any key goes back"}, body: helpLines(m.width)}
	case m.detail != nil:
		return m.detail.lines(m.width, m.body())
	case m.requests != nil:
		return m.requests.lines(m.width, m.body())
	}
	d := m.table.lines(m.width, m.body())
	if m.table.empty() {
		d.body = append(d.body, m.nothing()...)
	}
	return d
}

// top returns the screen's first line, with the title.
func (m *model) top(title string) string {
	name := "tapctl top"
	return heading.of(text.Fit(name, m.width)) + "  " + text.Fit(title, m.width-len(name)-2)
}

// newsLines returns the current errors as lines, the newest error first. There are at most
// three lines.
func (m *model) newsLines() []string {
	// Rejections are shown as long as their screen. A recent error comes before them.
	wrong := m.refused
	if m.requests != nil {
		wrong = slices.Concat(m.requests.refused, wrong)
	}
	if m.fresh() {
		wrong = slices.Concat([]error{m.news}, wrong)
	}
	var lines []string
	for _, err := range wrong {
		lines = append(lines, wrap(text.Clean(err.Error()), m.width)...)
	}
	// The screen must not consist of errors only.
	if most := max(1, min(3, m.height/6)); len(lines) > most {
		lines = lines[:most]
	}
	for i, l := range lines {
		lines[i] = failing.of(l)
	}
	return lines
}

// fresh reports whether the last error must still be shown, because it occurred within newsLast.
// Rejections do not count, because they are shown without a time limit.
func (m *model) fresh() bool { return m.news != nil && m.now().Sub(m.newsAt) <= newsLast }

// nothing returns the lines that explain to the user why the table is empty.
func (m *model) nothing() []string {
	// The order matters: the first reason that applies is the one to show.
	if m.table.filter != "" && len(m.table.rows) > 0 {
		return []string{"", "  No row has " + text.Clean(m.table.filter) + " in it. esc shows all again."}
	}
	if m.latest == nil {
		return []string{"", "  Asking " + text.Clean(m.config.Title) + " …"}
	}
	if m.fresh() {
		return []string{"", "  No row. The error is below. The request is repeated."}
	}
	lines := []string{"", fmt.Sprintf("  No request yet, after %v.", m.latest.GetSpan().AsDuration().Round(time.Second))}
	const help = "Rows appear with the first request. If requests exist but no row appears, tapctl check finds the reason."
	for _, l := range wrap(help, m.width-2) {
		lines = append(lines, "  "+l)
	}
	return lines
}

// wrap breaks s at spaces into lines of at most width columns. A longer word is shortened.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		// The first word of a line is never preceded by a space.
		switch {
		case line == "":
			line = word
		case text.Width(line)+1+text.Width(word) <= width:
			line += " " + word
		default:
			lines = append(lines, text.Fit(line, width))
			line = word
		}
	}
	return append(lines, text.Fit(line, width))
}
